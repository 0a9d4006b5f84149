"""Operands of products in a loop are copied to shared memory some turns ahead.

Each has several places there, of which one is read while others are filled. Copies are
asynchronous: nobody holds their elements in registers. A turn waits for those that it multiplies,
then begins those of a later turn, then multiplies; so one barrier is enough. Sums that nothing but
the next turn needs are added up while that begins: then the place before is still read, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.traits import is_contraction, is_input
from stack.ir.types import I32
from stack.ir.warp_ops import COPIES, VECTOR_BYTES, WARP
from stack.passes.gpu_layout.choice import blocked
from stack.passes.gpu_layout.memory import swizzle_of
from stack.passes.gpu_layout.product import Product
from stack.passes.gpu_layout.runs import Runs, sizes_of
from stack.passes.gpu_layout.share import NamedTile
from stack.passes.gpu_layout.threads import Threads
from stack.target import Gpu


class Ahead(Product):
    """Loops whose products have their operands copied ahead.

    Attributes:
        stages: turns whose operands are in shared memory at a time.
        around: the indices of the loops that the present one is in.
    """

    def __init__(
        self, old: Block, warps: int, runs: Runs, stages: int, gpu: Gpu, threads: Threads
    ) -> None:
        super().__init__(old, warps, runs, gpu, threads)
        self.stages = stages
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
            and self._piece(n) in COPIES
        ]

    def _piece(self, load: Node) -> int:
        """Bytes that one copy moves."""
        vectors = [self.runs.vector(load, axis) for axis in range(load.tensor.rank)]
        return min(VECTOR_BYTES, vectors[-1] * load.dtype.bytes)

    def overlapped(self, block: Block, sums: Mapping[Node, Node]) -> dict[Node, int]:
        """Sums of a loop's turn that nothing but the next turn needs, and how many there are.

        Args:
            sums: additions of products.
        """
        dots = [n for n in block.nodes if is_contraction(n)]
        found = [n for n in block.nodes if n in sums]
        loads = self.operands(block)
        used = {a for n in block.nodes for a in n.args}
        fits = (
            self.has_groups
            and len(found) == len(dots)
            and all(a in loads for d in dots for a in d.args)
            and all(n in block.results and n not in used for n in found)
        )
        return dict.fromkeys(found, len(found)) if fits else {}

    def distance(self, block: Block, loads: Sequence[Node], overlaps: bool) -> tuple[int, int]:
        """How many turns ahead operands are copied, and how many places each has for that.

        No turn where there is one only, or where shared memory has no room for two.
        """
        more = 2 if overlaps else 1
        dots = [n for n in block.nodes if is_contraction(n)]
        others = {
            a
            for n in dots
            for a in n.args
            if a not in loads and (a.op == "load" or not self.is_for_matrices(n))
        }
        kept = sum(map(_bytes, others))
        room = self.gpu.operand_bytes - kept
        most = room // sum(sizes_of(n.tensor)[0] * self._pitch(n) * n.dtype.bytes for n in loads)
        turns = int(block.params[0].attrs["extent"])
        places = min(self.stages - 1 + more, most, turns - 1 + more)
        return max(0, places - more), places

    def _pitch(self, load: Node) -> int:
        """Elements from one row of an operand in shared memory to the next."""
        _, columns = sizes_of(load.tensor)
        return columns if self._is_swizzled(load) else columns + VECTOR_BYTES // load.dtype.bytes

    def _is_swizzled(self, load: Node) -> bool:
        return self.has_groups and load.dtype.bits == 16

    def place_of(self, load: Node, places: int) -> Node:
        """Shared memory with all places of an operand.

        Each run of the loop has its own, as the one before wrote over the first places.
        """
        rows, columns = sizes_of(load.tensor)
        swizzle = swizzle_of(columns * load.dtype.bytes) if self._is_swizzled(load) else 0
        pitch = self._pitch(load)
        return self.shared(load.dtype, places * rows, pitch, inside=self.around, swizzle=swizzle)

    def first_row(self, load: Node, step: Node, first: Node, places: int) -> NamedTile:
        """Where the operand of a step begins."""
        place = self.b.rem(self.b.sub(step, first), places)
        start = self.b.mul(place, sizes_of(load.tensor)[0])
        if start.dtype is not I32:
            start = self.b.cast(start, type=start.tensor.with_dtype(I32))
        return self.in_each(NamedTile(start))

    def copied(
        self,
        load: Node,
        memory: Node,
        index: Node,
        step: Node,
        limits: Sequence[Node],
        places: int,
    ) -> Node:
        """The memory after the copy of a step began; zeros where there is no such step."""
        first, end = limits
        load = substituted(load, {index: step}, {})
        sizes = sizes_of(load.tensor)
        vectors = [self.runs.vector(load, axis) for axis in range(len(sizes))]
        layout = blocked(sizes, vectors, WARP * self.warps)
        source, mask, _ = self._access(load, load.tensor, layout)
        row = self.broadcast(self.first_row(load, step, first, places), (), layout)
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


def _bytes(tile: Node) -> int:
    return prod(sizes_of(tile.tensor)) * tile.dtype.bytes


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
