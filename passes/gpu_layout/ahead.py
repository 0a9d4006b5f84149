"""Operands of products in a loop are copied to shared memory one turn ahead.

Each has two places there, of which one is read while the other is filled. Copies are asynchronous:
nobody holds their elements in registers, and a turn waits for those that the one before it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.traits import is_contraction, is_input
from stack.ir.types import I32
from stack.ir.warp_ops import VECTOR_BYTES, WARP
from stack.passes.gpu_layout.choice import blocked
from stack.passes.gpu_layout.product import Product
from stack.passes.gpu_layout.runs import Runs, sizes_of
from stack.passes.gpu_layout.share import NamedTile

PLACES = 2  # of an operand in shared memory
COPIED = (4, 8, 16)  # bytes that an asynchronous copy moves at once


class Ahead(Product):
    """Loops whose products have their operands copied ahead.

    Attributes:
        around: the indices of the loops that the present one is in.
    """

    def __init__(self, old: Block, warps: int, runs: Runs) -> None:
        super().__init__(old, warps, runs)
        self.around: list[Node] = []

    def operands(self, block: Block) -> list[Node]:
        """The loads of a loop's turn that are operands of products and of nothing else."""
        index = block.params[0]
        used = {a for n in block.nodes for a in n.args if not is_contraction(n)} | set(
            block.results
        )
        found = {a: None for n in block.nodes if is_contraction(n) for a in n.args}
        return [
            n
            for n in found
            if n.op == "load"
            and n not in used
            and index in n.vars
            and n.vars.isdisjoint(block.params[1:])
            and is_input(n.args[0])
            and self._piece(n) in COPIED
        ]

    def _piece(self, load: Node) -> int:
        """Bytes that one copy moves."""
        vectors = [self.runs.vector(load, axis) for axis in range(load.tensor.rank)]
        return min(VECTOR_BYTES, vectors[-1] * load.dtype.bytes)

    def place_of(self, load: Node) -> Node:
        """Shared memory with all places of an operand.

        Each run of the loop has its own, as the one before wrote over the first places.
        """
        rows, columns = sizes_of(load.tensor)
        pitch = columns + VECTOR_BYTES // load.dtype.bytes
        return self.shared(load.dtype, PLACES * rows, pitch, inside=self.around)

    def first_row(self, load: Node, step: Node, first: Node) -> NamedTile:
        """Where the operand of a step begins."""
        place = self.b.rem(self.b.sub(step, first), PLACES)
        start = self.b.mul(place, sizes_of(load.tensor)[0])
        if start.dtype is not I32:
            start = self.b.cast(start, type=start.tensor.with_dtype(I32))
        return self.in_each(NamedTile(start))

    def copied(
        self, load: Node, memory: Node, index: Node, step: Node, limits: Sequence[Node]
    ) -> Node:
        """The memory after the copy of a step began; zeros where there is no such step."""
        first, end = limits
        load = substituted(load, {index: step}, {})
        sizes = sizes_of(load.tensor)
        vectors = [self.runs.vector(load, axis) for axis in range(len(sizes))]
        layout = blocked(sizes, vectors, WARP * self.warps)
        source, mask, _ = self._access(load, load.tensor, layout)
        row = self.broadcast(self.first_row(load, step, first), (), layout)
        to = [self.along(self.places(s), i, layout) for i, s in enumerate(layout)]
        to[0] = self.apply("add", to[0], row)
        is_there = self.broadcast(NamedTile(self.b.lt(step, end)), (), layout)
        mask = is_there if mask is None else self.apply("and", mask, is_there)
        lanes = min(vectors[-1], layout[-1].vector)
        args = [memory, self.memory_of(load.args[0]), *(i.node for i in (*to, *source)), mask.node]
        return self.b.op("async_copy", args, {"lanes": lanes})

    def limits_of(self, limits: Sequence[Node], index: Node) -> Sequence[Node]:
        """The first step of a loop and its end."""
        kind = index.dtype
        return limits or [constant(0, kind), constant(int(index.attrs["extent"]), kind)]


def substituted(node: Node, swap: Mapping[Node, Node], done: dict[Node, Node]) -> Node:
    """A value with others in the place of some variables."""
    if node in swap:
        return swap[node]
    if node.vars.isdisjoint(swap):
        return node
    if node not in done:
        args = [substituted(a, swap, done) for a in node.args]
        done[node] = Node(node.op, args, node.attrs, node.type, node.blocks)
    return done[node]
