"""Launches of a hand-written kernel, read from a CUDA graph and made valid for other memory.

A kernel's Python code is captured twice, on two sets of arrays. Both captures launch the same
functions; what differs between their parameters are the addresses of arrays. A parameter that
differs in another way has no place in a list of launches, and neither has a copy of memory, a
cooperative launch, or a cluster. Then the kernel stays a call of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..device.driver import MAP_BYTES

WORD = 8  # bytes of an address


@dataclass(frozen=True)
class Spot:
    """An address: the number of a buffer, and an offset in bytes."""

    buffer: int
    offset: int


@dataclass(frozen=True)
class MapOf:
    """A tensor map: its bytes, and the memory that it describes."""

    template: bytes
    memory: Spot


Parameter = Spot | MapOf | bytes


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        function: the driver's handle.
        grid, block: three sizes each.
        shared: bytes of dynamic shared memory.
        parameters: the values of the kernel's parameters; bytes as they were captured.
    """

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Fill:
    """Memory that is filled with `count` elements of `width` bytes, each with the bits of `value`.

    `target` is an address as captured, or its spot.
    """

    target: int | Spot
    value: int
    width: int
    count: int


RecordedStep = Launch | Fill


@dataclass(frozen=True)
class Recording:
    """One capture.

    Attributes:
        steps: launches in order.
        buffers: address and size in bytes of each array, those that the kernel took first.
        results: the numbers of the buffers that it returned.
    """

    steps: Sequence[RecordedStep]
    buffers: Sequence[tuple[int, int]]
    results: Sequence[int]

    def spot(self, address: int) -> Spot | None:
        """Returns the spot of an address; None if it is in no buffer."""
        for number, (start, size) in enumerate(self.buffers):
            if start <= address < start + max(size, 1):
                return Spot(number, address - start)
        return None


@dataclass(frozen=True)
class Recorded:
    """Launches that are valid for any memory of the buffers.

    Attributes:
        steps: launches and fills, with spots.
        sizes: bytes of each buffer.
        results: the numbers of the buffers that are results.
    """

    steps: tuple[RecordedStep, ...]
    sizes: tuple[int, ...]
    results: tuple[int, ...]


def relocated(
    first: Recording, second: Recording, moved: Callable[[bytes, int], bytes]
) -> Recorded | None:
    """Returns the launches of two captures of one kernel; None if more than addresses differ, or if
    a result is not written.

    Args:
        moved: returns a tensor map for memory at another address.
    """
    sizes = [size for _, size in first.buffers]
    is_same = sizes == [size for _, size in second.buffers] and first.results == second.results
    if not is_same or len(first.steps) != len(second.steps):
        return None
    captures, steps = _Captures(first, second, moved), list[RecordedStep]()
    for a, b in zip(first.steps, second.steps, strict=True):
        made = captures.step(a, b)
        if made is None:
            return None
        steps.append(made)
    if not set(first.results) <= _buffers(steps):
        return None
    return Recorded(tuple(steps), tuple(sizes), tuple(first.results))


class _Captures(NamedTuple):
    """Two captures of one kernel; arguments of methods are values of the first and the second."""

    first: Recording
    second: Recording
    moved: Callable[[bytes, int], bytes]

    def step(self, a: RecordedStep, b: RecordedStep) -> RecordedStep | None:
        if isinstance(a, Fill) and isinstance(b, Fill):
            assert isinstance(a.target, int)
            assert isinstance(b.target, int)
            spot = self.spot(a.target, b.target)
            is_same = (a.value, a.width, a.count) == (b.value, b.width, b.count)
            return Fill(spot, a.value, a.width, a.count) if spot and is_same else None
        if not (isinstance(a, Launch) and isinstance(b, Launch)):
            return None
        shape = a.function, a.grid, a.block, a.shared, len(a.parameters)
        if shape != (b.function, b.grid, b.block, b.shared, len(b.parameters)):
            return None
        found: list[Parameter] = []
        for x, y in zip(a.parameters, b.parameters, strict=True):
            value = self.parameter(x, y)
            if value is None:
                return None
            found.append(value)
        return Launch(a.function, a.grid, a.block, a.shared, tuple(found))

    def parameter(self, x: Parameter, y: Parameter) -> Parameter | None:
        """Returns the parameter with these values; None if it is no address and not constant."""
        assert isinstance(x, bytes)
        assert isinstance(y, bytes)
        if x == y:
            return x
        if len(x) != len(y) or len(x) not in (WORD, MAP_BYTES):
            return None
        old, new = (int.from_bytes(v[:WORD], "little") for v in (x, y))
        spot = self.spot(old, new)
        if spot is None or len(x) == WORD:
            return spot
        return MapOf(x, spot) if self.moved(x, new) == y else None

    def spot(self, old: int, new: int) -> Spot | None:
        """Returns the spot that two addresses have in their captures; None if they differ."""
        spot = self.first.spot(old)
        return spot if spot is not None and spot == self.second.spot(new) else None


def _buffers(steps: Sequence[RecordedStep]) -> set[int]:
    """Returns the numbers of the buffers that launches get."""
    found: set[int] = set()
    for step in steps:
        values = (step.target,) if isinstance(step, Fill) else step.parameters
        for value in values:
            spot = value.memory if isinstance(value, MapOf) else value
            if isinstance(spot, Spot):
                found.add(spot.buffer)
    return found
