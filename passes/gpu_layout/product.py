"""Products of tiles: operands in shared memory, sums in registers.

The matrix instruction of a warp is m16n8k16 of 16-bit floats with sums in f32 (PTX ISA,
"mma.m16n8k16"). As shares, with lane = 4 g + t: sums have rows g and columns t by pairs; the left
operand has the same rows, and along the depth what the sums have along the columns; the right
operand has columns g. So sums of one product are the left operand of the next as they lie.

Where four warps multiply together (PTX ISA, "wgmma"), each of them has 16 rows of 64, and what it
holds of them lies in the same way; the right operand stays in shared memory, and so does the left
unless it was computed.
"""

from __future__ import annotations

from stack.ir.builder import constant
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_contraction
from stack.ir.types import I32
from stack.ir.warp_ops import GROUP, GROUP_ROWS, MATRIX, WARP
from stack.passes.gpu_layout.fma import Fma, thread_sums_layout
from stack.passes.gpu_layout.memory import swizzle_of
from stack.passes.gpu_layout.runs import Runs
from stack.passes.gpu_layout.share import Digit, Layout, NamedTile, Share, share_of
from stack.passes.gpu_layout.sides import Sides
from stack.passes.gpu_layout.threads import Threads
from stack.target import Gpu

WIDEST = 256  # columns of an instruction of a warpgroup


def is_for_groups(dot: Node, warps: int) -> bool:
    """Whether warpgroups do a product: whole ones, whose columns are whole lines of memory."""
    sides = Sides(dot)
    if not sides.is_for_mma(dot) or warps % GROUP or sides.rows % GROUP_ROWS:
        return False
    _, across = group_grid(sides.rows, warps)
    width = sides.columns // across
    line = swizzle_of(sides.columns * dot.args[0].dtype.bytes) // dot.args[0].dtype.bytes
    return 8 <= width <= WIDEST and (sides.is_turned[1] or width % line == 0)


def group_grid(rows: int, warps: int) -> tuple[int, int]:
    """Warpgroups below and beside each other."""
    down = min(warps // GROUP, rows // GROUP_ROWS)
    return down, warps // GROUP // down


def group_sums_layout(rows: int, columns: int, warps: int) -> Layout:
    """Where the sums of warpgroups lie: each takes rows, what is over takes columns."""
    down, across = group_grid(rows, warps)
    own = rows // GROUP_ROWS // down
    return (
        share_of((8, 4), (2, 0), (GROUP, WARP), (own, 0), (down, WARP * GROUP)),
        share_of((2, 0), (4, 1), (columns // 8 // across, 0), (across, WARP * GROUP * down)),
    )


def sums_layout(rows: int, columns: int, warps: int) -> Layout:
    """Where the sums of matrix instructions lie: warps take rows, what is over takes columns."""
    down = min(warps, rows // MATRIX)
    across = min(warps // down, columns // MATRIX)
    return (
        share_of((8, 4), (rows // 8 // down, 0), (down, WARP)),
        share_of((2, 0), (4, 1), (columns // 8 // across, 0), (across, WARP * down)),
    )


def depth_share(depth: int) -> Share:
    """Where the places along the depth lie in both operands."""
    return share_of((2, 0), (4, 1), (depth // 8, 0))


def right_share(columns: Share) -> Share:
    """The columns of the right operand for those of the sums: their pairs and lanes are lanes."""
    return share_of((8, 4), *((d.count, d.stride) for d in columns.digits[2:]))


def _warp_digits(share: Share) -> list[tuple[Digit, int]] | None:
    """The digits of warps of the rows of an operand, with their weights.

    None where `load_matrix` does not read such rows: a lane's are 8 apart, and even in number.
    """
    lanes, *rest = share.digits
    own = rest[0] if rest and not rest[0].stride else None
    if lanes != Digit(8, 4) or own is None or not all(d.of_warps for d in rest[1:]):
        return None
    found: list[tuple[Digit, int]] = []
    weight = 8 * own.count
    for digit in rest[1:]:
        found.append((digit, weight))
        weight *= digit.count
    return found


class Product(Fma):
    """Products of two tiles.

    Attributes:
        gpu: the machine.
        has_groups: whether warpgroups do all products that matrix instructions do.
        matrices: operands of matrix instructions that are read from shared memory.
        swizzled: operands that were put there for warpgroups.
        pending: sums that a loop adds to while the next turn begins.
    """

    def __init__(self, old: Block, warps: int, runs: Runs, gpu: Gpu, threads: Threads) -> None:
        super().__init__(old, warps, runs, threads)
        self.gpu = gpu
        dots = [n for _, n in walk(old) if is_contraction(n) and self.is_for_matrices(n)]
        fits = bool(dots) and all(is_for_groups(n, warps) for n in dots)
        self.has_groups = fits and "wgmma" in gpu.features
        self.matrices: dict[tuple[Node, Layout], NamedTile] = {}
        self.swizzled: dict[Node, Node] = {}
        self.pending: dict[Node, int] = {}

    def is_for_matrices(self, dot: Node) -> bool:
        """Whether matrix instructions do a product, unless threads are told to."""
        return Sides(dot).is_for_mma(dot) and not self.threads.is_told

    def prescribed(self, dot: Node) -> Layout:
        """Where the sums of a product should lie; nowhere in particular where that is empty."""
        sides = Sides(dot)
        if self.is_for_matrices(dot):
            return self.sums_layout(sides)
        return thread_sums_layout(sides, self.warps, self.threads)

    def sums_layout(self, sides: Sides) -> Layout:
        """Where the sums of matrix instructions lie."""
        make = group_sums_layout if self.has_groups else sums_layout
        return make(sides.rows, sides.columns, self.warps)

    def dot(
        self, node: Node, layout: Layout, start: NamedTile | None = None, pending: int = 0
    ) -> NamedTile:
        """The sums of a product in a layout, added to what they start from.

        Args:
            pending: products of warpgroups that need not be done, the newest.
        """
        sides = Sides(node)
        if start is None:
            start = self.broadcast(NamedTile(constant(0, node.dtype)), (), layout)
        if self.is_for_matrices(node) and layout == self.sums_layout(sides):
            if self.has_groups:
                return self.waited(self._by_groups(sides, layout, start), pending)
            return self._by_mma(sides, layout, start)
        return self.by_fma(node, sides, layout, start)

    def _by_groups(self, sides: Sides, layout: Layout, start: NamedTile) -> NamedTile:
        down, across = group_grid(sides.rows, self.warps)
        row = self._start(Digit(down, WARP * GROUP), sides.rows // down)
        column = self._start(Digit(across, WARP * GROUP * down), sides.columns // across)
        own = (layout[0], depth_share(sides.depth))
        left = self.known.get(sides.left)
        if left is not None and left.layout == own and not sides.is_turned[0]:
            first = [left.node]
        else:
            first = self._matrix(sides.left, row, sides.is_turned[0])
        second = self._matrix(sides.right, column, not sides.is_turned[1])
        turned = [sides.is_turned[0], not sides.is_turned[1]]
        attrs = {"depth": sides.depth, "turned": turned}
        args = [start.node, *first, *second]
        return NamedTile(self.b.op("warpgroup_mma", args, attrs), layout)

    def waited(self, sums: NamedTile, pending: int = 0) -> NamedTile:
        """Sums when all but some products of warpgroups are done."""
        return NamedTile(
            self.b.op("warpgroup_wait", [sums.node], {"pending": pending}), sums.layout
        )

    def _start(self, digit: Digit, weight: int) -> NamedTile:
        """Where the part of a warpgroup begins."""
        if digit.count == 1:
            return self.in_each(NamedTile(constant(0, I32)))
        return self.apply("mul", self.digit(digit), weight)

    def _matrix(self, node: Node, own: NamedTile, turned: bool) -> list[Node]:
        """An operand of a warpgroup in shared memory, and the row and the column it begins at."""
        memory, first = self.staged.get(node, (None, None))
        if memory is None:
            if node not in self.swizzled:
                home = self.known.get(node)
                made = home if home is not None else self.at(node, self.layout_of(node))
                self.swizzled[node] = self.kept(made, True)
            memory = self.swizzled[node]
        zero = self.in_each(NamedTile(constant(0, I32)))
        row, column = (zero, own) if turned else (own, zero)
        if first is not None:
            row = first if turned else self.apply("add", row, first)
        return [memory, row.node, column.node]

    def _by_mma(self, sides: Sides, layout: Layout, start: NamedTile) -> NamedTile:
        along = depth_share(sides.depth)
        left = self._operand(sides.left, (layout[0], along), sides.is_turned[0])
        right = self._operand(sides.right, (along, right_share(layout[1])), sides.is_turned[1])
        return NamedTile(self.b.mma_sync(left.node, right.node, start.node), layout)

    def _operand(self, node: Node, layout: Layout, is_turned: bool) -> NamedTile:
        """An operand where the instruction wants it, the depth last in the left one.

        Args:
            layout: of the operand, as the instruction names its axes.
            is_turned: whether the operand has them the other way round.
        """
        own = layout[::-1] if is_turned else layout
        home = self.known.get(node)
        if home is None or home.layout != own:
            depth = 1 if layout[1].digits[0].count == 2 else 0
            start = _warp_digits(layout[1 - depth])
            if start is not None:
                return self._by_matrices(node, layout, depth, is_turned, start)
        return self.turned(self.at(node, own), (1, 0)) if is_turned else self.at(node, own)

    def _by_matrices(
        self,
        node: Node,
        layout: Layout,
        depth: int,
        is_turned: bool,
        start: list[tuple[Digit, int]],
    ) -> NamedTile:
        """An operand from shared memory, 8 x 8 matrices by fours."""
        order = (1 - depth, depth)
        key = (node, tuple(layout[i] for i in order))
        if key not in self.matrices:
            memory, first = self.in_shared(node)
            turned = (depth == 0) != is_turned
            row = self.in_each(NamedTile(constant(0, I32)))
            for digit, weight in start:
                row = self.apply("add", row, self.apply("mul", self.digit(digit), weight))
            column = self.in_each(NamedTile(constant(0, I32)))
            if first is not None and turned:
                column = self.apply("add", column, first)
            elif first is not None:
                row = self.apply("add", row, first)
            attrs = {"turned": turned}
            type_ = self.type_of(node.dtype, key[1])
            args = [memory, row.node, column.node]
            made = self.b.op("load_matrix", args, attrs, hint=type_)
            self.matrices[key] = NamedTile(made, key[1])
        return self.turned(self.matrices[key], order)
