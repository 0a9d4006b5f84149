"""Control flow run from Python: programs inside a program, each executed as one of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from stack.ir.node import Node

from .device import Device, Make
from .values import Array

CONTROL = frozenset({"call", "cond", "while"})


class InnerProgram(Protocol):
    """A program inside a program; see `BlockProgram`."""

    @property
    def capturable(self) -> bool: ...

    @property
    def updated(self) -> set[int]: ...

    def turn(self, arrays: Sequence[Array], stream: int) -> list[Array]: ...

    def work(self, arrays: Iterable[Array], stream: int, /) -> list[Array]: ...


def control(node: Node, inner: Sequence[InnerProgram], device: Device) -> Make:
    """Returns the function that executes a `call`, `cond` or `while` node with blocks `inner`."""
    if node.op == "call":
        return inner[0].work
    if node.op == "cond":
        return _branch(inner)
    test, body = inner
    count = node.attrs.get("trip_count")
    return _loop(test, body, device) if count is None else _turns(body, count, device)


def is_capturable(node: Node, inner: Sequence[InnerProgram]) -> bool:
    """True if a CUDA graph can capture a control flow node with blocks `inner`.

    Only if the host knows, without waiting for the device, which kernels run: for a call, or a loop
    with a constant trip count, whose steps can all be captured.
    """
    is_known = node.op == "call" or node.attrs.get("trip_count") is not None
    return is_known and inner[-1].capturable


def _branch(branches: Sequence[InnerProgram]) -> Make:
    """Returns a function that runs the branch whose number is its first array.

    A number out of range is clamped to the first or last branch.
    """

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        number = min(max(int(arrays[0]), 0), len(branches) - 1)
        return branches[number].work(arrays[1:], stream)

    return run


def _turns(body: InnerProgram, count: int, device: Device) -> Make:
    """Returns a function that runs a loop body `count` times; a result is the next operand.

    Operands that the body overwrites are copied first.
    """
    updated = body.updated

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        state = [device.copy(a) if i in updated else a for i, a in enumerate(arrays)]
        for _ in range(count):
            state = body.turn(state, stream)
        return state

    return run


def _loop(test: InnerProgram, body: InnerProgram, device: Device) -> Make:
    """Returns a function that runs a loop while `test` is true, tested before each iteration.

    A result may be an operand that no iteration changed.
    """
    updated = body.updated

    def run(arrays: Sequence[Array], stream: int) -> list[Array]:
        # an array that is updated in place must belong to the loop
        state = [device.copy(a) if i in updated else a for i, a in enumerate(arrays)]
        while bool(test.work(state, stream)[0]):
            state = body.turn(state, stream)
        return state

    return run
