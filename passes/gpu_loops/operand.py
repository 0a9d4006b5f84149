"""One operand of a matrix product on a GPU: where its elements are, and how they get to shared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stack.ir.integers import Integers
from stack.ir.node import Node
from stack.ir.types import DType, TensorType
from stack.ir.warp_ops import VECTOR_BYTES, WARP
from stack.passes.cpu_loops.chunk import plus
from stack.passes.gpu_loops.frame import Threads


@dataclass
class Operand:
    """The block of an operand that a tile of the product needs.

    Attributes:
        load: the block at the tile level.
        names: its axes, the last ones of the memory.
        own: its axis of the tile, "" where it has one row.
        contracted: the summed axes, in the order in which they are walked.
        extent: elements along `own`.
        padded: rows in shared memory: `extent`, made a multiple of what threads take.
    """

    t: Threads
    load: Node
    names: Sequence[str]
    own: str
    contracted: Sequence[str]
    padded: int = 0

    def __post_init__(self) -> None:
        self.memory, *self.start = self.load.args
        self.swap: dict[Node, Node] = {}
        self.padded = self.padded or self.extent

    def size(self, name: str) -> int:
        """Elements along an axis."""
        size = self.load.shape[list(self.names).index(name)]
        assert isinstance(size, int)
        return size

    @property
    def extent(self) -> int:
        return self.size(self.own) if self.own else 1

    @property
    def depth(self) -> int:
        """Elements along all summed axes together."""
        return math.prod(self.size(n) for n in self.contracted)

    @property
    def dtype(self) -> DType:
        return self.load.dtype

    @property
    def is_deep(self) -> bool:
        """Whether neighbours in memory are neighbours in depth."""
        return self.names[-1] != self.own or not self.own

    def lanes(self, most: int) -> int:
        """Neighbours that one access may move: all alike aligned, none past an end."""
        last = self.memory.shape[-1]
        assert isinstance(last, int)
        along = self.names[-1]
        if along == self.own:
            inside = self.extent
        elif along == self.contracted[-1]:
            inside = self.size(along)
        else:
            return 1
        start = Integers().divisor(self.start[-1])
        lanes = min(most, VECTOR_BYTES // self.dtype.bytes)
        while math.gcd(last, start, inside, lanes) % lanes:
            lanes //= 2
        return lanes

    def at(self, own: Node, depth: Node, swap: Callable[[Node], Node]) -> list[Node]:
        """The index of an element; `swap` gives the tile's start in new indices."""
        b = self.t.b
        index = [swap(s) for s in self.start]
        lead = len(index) - len(self.names)
        rest, size = depth, self.depth
        for name in reversed(self.contracted):
            axis, extent = lead + list(self.names).index(name), self.size(name)
            part = rest if size == extent else b.rem(rest, extent)
            index[axis] = plus(b, index[axis], part)
            size //= extent
            if size > 1:
                rest = b.div(rest, extent)
        if self.own and self.extent > 1:
            axis = lead + list(self.names).index(self.own)
            index[axis] = plus(b, index[axis], own)
        return index

    def vectors(self, depth: int, lanes: int) -> int:
        """Accesses that bring `depth` elements of every row."""
        return self.padded * depth // lanes

    def place(self, item: Node, depth: int, lanes: int) -> tuple[Node, Node]:
        """Row and depth at which an access of a block starts, neighbours in memory first."""
        t = self.t
        along = depth if self.is_deep else self.padded
        outer, inner = t.b.div(item, along // lanes), t.b.rem(item, along // lanes)
        if along == lanes:
            outer, inner = item, t.int(0)
        inner = t.times(inner, lanes)
        return (outer, inner) if self.is_deep else (inner, outer)

    def inside(self, own: Node, lanes: int) -> Node:
        """A row that exists: what is past the end is read again, and not used."""
        step = 1 if self.is_deep else lanes
        return own if self.padded == self.extent else self.t.b.min(own, self.extent - step)

    def shared(
        self, hint: str, dtype: DType, depth: int, pad: int, stages: int, deep: bool
    ) -> Node:
        """Shared memory for `stages` blocks; rows are longer than what they hold, to spread over
        the banks."""
        shape = (self.padded, depth + pad) if deep else (depth, self.padded + pad)
        return self.t.memory("shared", hint, dtype, *([stages] if stages > 1 else []), *shape)


def share(t: Threads, count: int, warps: int) -> tuple[int, Callable[[Node], Node]]:
    """Turns in which the threads of a block do `count` things, and which one in a iteration."""
    threads = warps * WARP
    iterations = -(-count // threads)

    def item(iteration: Node) -> Node:
        thread = t.b.add(t.times(t.warp, WARP), t.lane)
        made = thread if iterations == 1 else t.b.add(t.b.mul(iteration, threads), thread)
        return made if count % threads == 0 else t.b.min(made, count - 1)

    return iterations, item


def line(dtype: DType, lanes: int) -> TensorType:
    """The type of a short vector."""
    return TensorType(dtype, (lanes,), "tile")


__all__ = ["Operand", "line", "share"]
