"""Products of threads that multiply by themselves: what no matrix instruction takes.

A warp has 4 x 8 threads, each with a small tile of sums; a schedule may say otherwise: one axis
along the lanes, or how many rows and columns a thread has.

Sums of one block of depth are added up apart and then to the total: rounding errors grow with the
number of blocks and not with the depth. A. M. Castaldo, R. C. Whaley, A. T. Chronopoulos,
"Reducing floating point error in dot product using the superblock family of algorithms" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.types import I32, DType, TensorType
from stack.ir.warp_ops import VECTOR_BYTES, WARP
from stack.passes.gpu_layout.reduce import Reduce
from stack.passes.gpu_layout.runs import Runs
from stack.passes.gpu_layout.share import Layout, NamedTile, Share, share_of
from stack.passes.gpu_layout.sides import Sides
from stack.passes.gpu_layout.threads import Threads

DOWN, ACROSS = 4, 8  # threads of a warp, below and beside each other
UNROLLED = 8  # steps of depth whose code the nearest instruction cache holds


@dataclass(frozen=True)
class Point(Share):
    """One place of an axis, the same in all threads."""

    place: Node | None = None


class Fma(Reduce):
    """Fused multiply-adds of single threads.

    Attributes:
        threads: what the kernel says about lanes and about the sums of a thread.
        staged: operands that are copied to shared memory some turns ahead, see `ahead`.
    """

    def __init__(self, old: Block, warps: int, runs: Runs, threads: Threads) -> None:
        super().__init__(old, warps, runs)
        self.threads = threads
        self.staged: dict[Node, tuple[Node, NamedTile | None]] = {}

    def by_fma(self, node: Node, sides: Sides, layout: Layout, start: NamedTile) -> NamedTile:
        """One product after another for each element, added to what they start from."""
        few = min(UNROLLED, sides.depth)
        outer, inner = (self._step(n) for n in (sides.depth // few, few))
        depth = self.b.add(self.b.mul(outer, few), inner)
        operands = [
            self.along(self._factor(sides, axis, layout[axis], depth, node.dtype), axis, layout)
            for axis in range(2)
        ]
        type_ = self.type_of(node.dtype, layout)
        held = [Node("var", (), {"name": self.fresh("part")}, type_) for _ in range(2)]
        block = Block((inner, held[1]), (self.b.fma(*(o.node for o in operands), held[1]),))
        few_products = self.b.op("loop", [held[0]], {"kind": "unroll"}, (block,))
        block = Block((outer, held[0]), (few_products,))
        zero = self.broadcast(NamedTile(constant(0, node.dtype)), (), layout)
        part = self.b.op("loop", [zero.node], {"kind": "serial"}, (block,))
        return NamedTile(self.b.add(start.node, part), layout)

    def _step(self, extent: int) -> Node:
        """The index of a loop along the depth."""
        return Node("var", (), {"name": self.fresh("d"), "extent": extent}, TensorType(I32, ()))

    def _factor(
        self, sides: Sides, axis: int, share: Share, depth: Node, dtype: DType
    ) -> NamedTile:
        """The rows or columns of a thread at one depth."""
        operand = (sides.left, sides.right)[axis]
        is_depth_first = (axis == 1) != sides.is_turned[axis]
        if self._is_direct(operand):
            read = self._from_memory(operand, share, Point(place=depth), is_depth_first)
        else:
            read = self._from_shared(operand, share, depth, is_depth_first)
        if read.dtype == dtype:
            return read
        return NamedTile(self.b.cast(read.node, type=read.node.tensor.with_dtype(dtype)), (share,))

    def _is_direct(self, operand: Node) -> bool:
        """Whether threads read an operand where it lies, block of depth or not."""
        return self.threads.is_direct and operand.op == "load"

    def _from_memory(
        self, load: Node, share: Share, depth: Point, is_depth_first: bool
    ) -> NamedTile:
        layout = (depth, share) if is_depth_first else (share, depth)
        index, mask, other = self._access(load, load.tensor, layout)
        read = self._loaded(load, layout, is_depth_first, 1, index, mask, other)
        type_ = self.type_of(load.dtype, (share,))
        return NamedTile(self.b.reshape(read.node, type=type_), (share,))

    def _from_shared(
        self, operand: Node, share: Share, depth: Node, is_depth_first: bool
    ) -> NamedTile:
        memory, first = self.in_shared(operand)
        own = self.places(share)
        along = self.broadcast(NamedTile(depth), (), (share,))
        index = [along.node, own.node] if is_depth_first else [own.node, along.node]
        if first is not None:
            index[0] = self.b.add(index[0], self.broadcast(first, (), (share,)).node)
        attrs = self._vector(memory.dtype, share, [4]) if is_depth_first else {}
        type_ = self.type_of(memory.dtype, (share,))
        return NamedTile(self.b.op("load", [memory, *index], attrs, hint=type_), (share,))

    def in_shared(self, node: Node) -> tuple[Node, NamedTile | None]:
        """An operand in shared memory, and the row that it begins at if not the first."""
        if node in self.staged:
            return self.staged[node]
        home = self.known.get(node)
        return self.kept(home if home is not None else self.at(node, self.layout_of(node))), None

    def places(self, share: Share, dtype: DType = I32) -> NamedTile:
        if isinstance(share, Point) and share.place is not None:
            return self.broadcast(NamedTile(share.place), (), (share,))
        return super().places(share, dtype)


def thread_sums_layout(sides: Sides, warps: int, threads: Threads) -> Layout:
    """Where the sums of threads lie; empty where they are fewer than threads."""
    extents = sides.rows, sides.columns
    if threads.lanes:
        own = [(WARP, 1) if n == threads.lanes else (warps, WARP) for n in ("rows", "columns")]
        pairs = zip(extents, own, strict=True)
        return tuple(share_of(t, (extent // t[0], 0)) for extent, t in pairs)
    grid = _warp_grid(sides, warps, threads)
    if grid is None:
        return ()
    down, across = grid
    most = VECTOR_BYTES // sides.right.dtype.bytes
    # neighbours that one access to shared memory takes, then those of other threads
    tall = most if sides.is_turned[0] else 1
    wide = 1 if sides.is_turned[1] else most
    return (
        _share(extents[0], tall, (DOWN, ACROSS), (down, WARP * across)),
        _share(extents[1], wide, (ACROSS, 1), (across, WARP)),
    )


def _share(extent: int, most: int, lanes: tuple[int, int], warps: tuple[int, int]) -> Share:
    count = extent // (lanes[0] * warps[0])
    vector = min(count, most)
    return share_of((vector, 0), lanes, (count // vector, 0), warps)


def _warp_grid(sides: Sides, warps: int, told: Threads) -> tuple[int, int] | None:
    """Warps below and beside each other, so that tiles of threads are near to square."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for across in (1 << i for i in range(warps.bit_length())):
        down = warps // across
        own = sides.rows // (DOWN * down), sides.columns // (ACROSS * across)
        wanted = (told.rows or 1, told.columns or 1) if told.is_told else own
        if all(own) and own == wanted:
            found[down, across] = own
    return min(found, key=lambda g: (sum(found[g]), -found[g][1]), default=None)
