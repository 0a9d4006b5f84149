"""Which panels of keys a comparison of positions leaves to a program of a CPU's stream."""

from __future__ import annotations

from collections.abc import Callable

from stack.ir.axes import Index
from stack.ir.builder import Builder
from stack.ir.dim import Dim, substitute
from stack.ir.node import Block, Node
from stack.ir.types import I64
from stack.passes.blocking.frame import Held
from stack.passes.blocking.reduce import BlockReduce

Read = Callable[[Node, Index], Node]


class RowFrame(BlockReduce):
    """The axes of a program as `blocking.limits` knows them; values are read by the program.

    Args:
        read: the value of a node at an index of the program: a tile, or a scalar.
    """

    def __init__(self, states: Block, b: Builder, read: Read) -> None:
        super().__init__(states, I64)
        self.b = b
        self.read = read
        self.rows = ""
        self.places: dict[str, Dim] = {}  # axis -> its place in the program

    def enter(self, place: Dim, size: int, block: int, start: Node) -> Dim:
        """An axis of the program, and what stands for it in the frame."""
        axis = self.axis("m" if block > 1 else "b", size, block, start)
        self.places[axis.name] = place
        if block > 1:
            self.rows = axis.name
        return axis.place

    def value(self, node: Node, index: Index, guard: Held | None = None) -> Held:
        """The value of a node at an index."""
        found = self.read(node, tuple(substitute(d, self.places) for d in index))
        return Held(found, (self.rows,) if found.tensor.rank else ())
