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

from stack.ir.warp_ops import GROUP, GROUP_ROWS, LINE_BYTES, MATRIX, VECTOR_BYTES, WARP
from stack.passes.gpu_layout.attributes import Attributes
from stack.passes.gpu_layout.matmul import Matmul
from stack.passes.gpu_layout.share import Digit, Layout, Share, share_of

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
    """Returns how the columns of the right operand are distributed over threads, from `columns`,
    their distribution in the sums.
    """
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
    """Returns the layout of the sums of a matmul that threads compute by multiply-adds; empty if
    there are fewer sums than threads.
    """
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
