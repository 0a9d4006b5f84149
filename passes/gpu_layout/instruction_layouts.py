"""The layouts of sums and operands that instructions for matmuls prescribe.

The matrix instruction of a warp is m16n8k16 of 16-bit floats with sums in f32 (PTX ISA,
"mma.m16n8k16"). With lane = 4 g + t, a lane has sums of rows g and of pairs of columns t. The left
operand has the same rows, and along the depth the layout that sums have along columns; the right
operand has columns g. So the sums of one matmul are the left operand of the next without a move.

If four warps multiply together (PTX ISA, "wgmma"), each has 16 rows of 64 in that same layout.

Without matrix instructions a warp has 4 x 8 threads, each with a small tile of sums, unless the
kernel says how many rows and columns a thread has, or along which axis the lanes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.traits import contractions, is_contraction
from stack.ir.types import DType
from stack.ir.warp_ops import (
    GROUP,
    GROUP_COLUMNS,
    GROUP_ROWS,
    LINE_BYTES,
    MATRIX,
    VECTOR_BYTES,
    WARP,
)
from stack.passes.gpu_layout.attributes import Attributes
from stack.passes.gpu_layout.classes import is_tile
from stack.passes.gpu_layout.contiguity import size_of
from stack.passes.gpu_layout.share import Digit, Layout, Share, share_of
from stack.target import Gpu


class Matmul:
    """A contraction `left @ right` of two matrices, either of which may be transposed.

    Attributes:
        node: the contraction.
        left: the operand with the rows.
        right: the operand with the columns.
        is_transposed: for each operand, True if the depth comes first in `left`, last in `right`.
    """

    def __init__(self, node: Node) -> None:
        rule = parse_rule(node.attrs["rule"])
        names = [[a.names[0] for a in side] for side in rule.inputs]
        rows, columns = (a.names[0] for a in rule.outputs[0])
        first = 0 if rows in names[0] else 1
        self.node = node
        self.left, self.right = node.args[first], node.args[1 - first]
        self.is_transposed = names[first][0] != rows, names[1 - first][1] != columns
        self.rows, self.columns = (size_of(node.tensor, i) for i in range(2))
        self.depth = size_of(self.left.tensor, 0 if self.is_transposed[0] else 1)

    @property
    def dtype(self) -> DType:
        """The type of the sums."""
        return self.node.dtype

    @property
    def fits_matrix_units(self) -> bool:
        """True if matrix instructions exist for its types and sizes."""
        kinds = {self.left.dtype.name, self.right.dtype.name}
        fits = not any(n % MATRIX for n in (self.rows, self.columns, self.depth))
        return fits and len(kinds) == 1 and kinds <= {"f16", "bf16"} and self.dtype.name == "f32"


LANE_ROWS = 4  # threads of a warp along rows, without matrix instructions
LANE_COLUMNS = WARP // LANE_ROWS


# ---- matrix instructions


def mma_layout(rows: int, columns: int, warps: int) -> Layout:
    """The layout of sums of warps: warps split the rows, and if some are left over, the columns."""
    down = min(warps, rows // MATRIX)
    across = min(warps // down, columns // MATRIX)
    return (
        share_of((8, 4), (rows // 8 // down, 0), (down, WARP)),
        share_of((2, 0), (4, 1), (columns // 8 // across, 0), (across, WARP * down)),
    )


def warpgroup_layout(rows: int, columns: int, warps: int) -> Layout:
    """The layout of sums of warpgroups, which split rows first, then columns."""
    down, across = warpgroup_grid(rows, warps)
    own = rows // GROUP_ROWS // down
    return (
        share_of((8, 4), (2, 0), (GROUP, WARP), (own, 0), (down, WARP * GROUP)),
        share_of((2, 0), (4, 1), (columns // 8 // across, 0), (across, WARP * GROUP * down)),
    )


def warpgroup_grid(rows: int, warps: int) -> tuple[int, int]:
    """Returns the numbers of warpgroups that split the rows, and the columns."""
    down = min(warps // GROUP, rows // GROUP_ROWS)
    return down, warps // GROUP // down


def depth_share(depth: int) -> Share:
    """Returns how the depth (the contracted axis) of both operands is distributed over lanes and
    registers, as the matrix instruction of a warp prescribes.
    """
    return share_of((2, 0), (4, 1), (depth // 8, 0))


def right_share(columns: Share) -> Share:
    """Returns the share of columns of the right operand, from their share in the sums."""
    return share_of((8, 4), *((d.count, d.stride) for d in columns.digits[2:]))


def warp_digits(share: Share) -> list[tuple[Digit, int]] | None:
    """Returns the digits of a row index that select the warp, with their weights, from the
    distribution `share` of an operand's rows.

    None if `load_matrix` cannot load such rows: a lane's are 8 apart, and their number is even.
    """
    lanes, *rest = share.digits
    is_even = bool(rest) and not rest[0].stride
    if lanes != Digit(8, 4) or not is_even or not all(d.of_warps for d in rest[1:]):
        return None
    return share.weighted[2:]


def swizzle_of(row_bytes: int) -> int:
    """Returns the bytes of a row within which 16-byte chunks are permuted (swizzled) for
    warpgroups; `row_bytes` is a power of two.

    Chunks of 16 bytes are permuted by the row number, so that eight rows are in different banks
    (PTX ISA, "Shared Memory Matrix Layout").
    """
    return min(LINE_BYTES, row_bytes)


# ---- fused multiply-adds of threads


def fma_layout(matmul: Matmul, attributes: Attributes) -> Layout:
    """Returns the layout of sums by multiply-adds; empty for fewer sums than threads."""
    extents = matmul.rows, matmul.columns
    if attributes.lanes:
        warps = attributes.warps
        own = [(WARP, 1) if n == attributes.lanes else (warps, WARP) for n in ("rows", "columns")]
        pairs = zip(extents, own, strict=True)
        return tuple(share_of(t, (extent // t[0], 0)) for extent, t in pairs)
    grid = _warp_grid(matmul, attributes)
    if grid is None:
        return ()
    down, across = grid
    most = VECTOR_BYTES // matmul.right.dtype.bytes
    # a thread has the neighbours that one access to shared memory loads; other threads follow
    tall = most if matmul.is_transposed[0] else 1
    wide = 1 if matmul.is_transposed[1] else most
    return (
        _share(extents[0], tall, (LANE_ROWS, LANE_COLUMNS), (down, WARP * across)),
        _share(extents[1], wide, (LANE_COLUMNS, 1), (across, WARP)),
    )


def _share(extent: int, most: int, lanes: tuple[int, int], warps: tuple[int, int]) -> Share:
    count = extent // (lanes[0] * warps[0])
    vector = min(count, most)
    return share_of((vector, 0), lanes, (count // vector, 0), warps)


def _warp_grid(matmul: Matmul, attributes: Attributes) -> tuple[int, int] | None:
    """Returns the numbers of warps that split rows and columns, for nearly square thread tiles."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for across in (1 << i for i in range(attributes.warps.bit_length())):
        down = attributes.warps // across
        own = matmul.rows // (LANE_ROWS * down), matmul.columns // (LANE_COLUMNS * across)
        given = attributes.rows or 1, attributes.columns or 1
        if all(own) and (own == given or not attributes.wants_fma):
            found[down, across] = own
    return min(found, key=lambda g: (sum(found[g]), -found[g][1]), default=None)


class Instructions:
    """The instructions for the matmuls of a kernel, and the layouts that they prescribe.

    Attributes:
        has_warpgroups: True if warpgroups compute all matmuls that use matrix instructions.
        layouts: of the sums of each matmul for which some layout is prescribed.
        accumulations: additions to a matmul result that nothing else uses, each with its matmul:
            the accumulators start from the other operand.
    """

    def __init__(self, nodes: Sequence[Node], attributes: Attributes, gpu: Gpu) -> None:
        self.attributes = attributes
        matmuls = [Matmul(n) for n in contractions(nodes)]
        on_units = [m for m in matmuls if self.uses_matrix_units(m)]
        fits = bool(on_units) and all(_fits_warpgroups(m, attributes.warps) for m in on_units)
        self.has_warpgroups = fits and "wgmma" in gpu.features
        found = {m.node: self.layout_of(m) for m in matmuls}
        self.layouts = {node: layout for node, layout in found.items() if layout}
        self.accumulations = _accumulations(nodes)

    def uses_matrix_units(self, matmul: Matmul) -> bool:
        """True if matrix instructions compute a matmul."""
        return matmul.fits_matrix_units and not self.attributes.wants_fma

    def layout_of(self, matmul: Matmul) -> Layout:
        """The layout that the sums of a matmul should have; empty if none is prescribed."""
        if not self.uses_matrix_units(matmul):
            return fma_layout(matmul, self.attributes)
        make = warpgroup_layout if self.has_warpgroups else mma_layout
        return make(matmul.rows, matmul.columns, self.attributes.warps)


def _fits_warpgroups(matmul: Matmul, warps: int) -> bool:
    """True if warpgroups split a matmul evenly and its columns are whole swizzled rows."""
    if warps % GROUP or matmul.rows % GROUP_ROWS:
        return False
    _, across = warpgroup_grid(matmul.rows, warps)
    width = matmul.columns // across
    item = matmul.node.args[0].dtype.bytes
    line = swizzle_of(matmul.columns * item) // item
    return 8 <= width <= GROUP_COLUMNS and (matmul.is_transposed[1] or width % line == 0)


def _accumulations(nodes: Sequence[Node]) -> dict[Node, Node]:
    uses = Counter(a for n in nodes for a in n.args)
    uses.update(r for n in nodes for b in n.blocks for r in b.results)
    return {
        n: a
        for n in nodes
        for a in (n.args if n.op == "add" and is_tile(n) else ())
        if is_contraction(a) and uses[a] == 1 and all(is_tile(b) for b in n.args)
    }
