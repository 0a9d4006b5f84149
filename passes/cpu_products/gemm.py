"""Tiles of matrix products on a CPU: how many rows and columns of accumulators registers hold.

The policy `passes/policies/cpu_products.py` makes kernels of such tiles. Sizes that a tile does not
divide need no second kernel: the last tile starts early, and computes some elements again.
"""

from __future__ import annotations

from stack.ir.contraction import product_types
from stack.ir.node import Node
from stack.ir.traits import behind, in_windows, maker, runs_once
from stack.ir.types import DType
from stack.passes.cpu_loops.walk import walk_of
from stack.passes.cpu_products.by_lane import shared_tile
from stack.passes.cpu_products.mma import (
    depth_tile,
    fitting_rows,
    known_to_libraries,
    mma_lanes,
    mma_of,
    mma_rows,
    sums_along_depth,
)
from stack.passes.tiling.contraction import (
    operand_names,
    result_names,
    roles_of,
)
from stack.passes.tiling.frame import CannotTile, wide
from stack.target import Cpu, Mma

PREFERRED_ROWS = {4: 4, 2: 7, 1: 12}  # by vectors in a row: enough sums, short code
MOST_ROWS = max(PREFERRED_ROWS.values())
# vectors in a row: of elements that are no power of two LLVM makes single ones
WIDTHS = tuple(PREFERRED_ROWS)
# of the time of a multiplication: loading a vector of the panel from the second-level cache, and an
# element of a row from the first
PANEL_LOAD, ROW_LOAD = 0.8, 0.4


def most_rows(vectors: int, cpu: Cpu) -> int:
    """Rows of a tile of so many vectors in a row."""
    return min(cpu.most_rows(vectors), MOST_ROWS)


def tile_cost(rows: int, vectors: int) -> float:
    """Time of one step of the contracted axes for a tile of so many rows and vectors in a row.

    An operand is loaded for the products of one row, or of one vector, of a tile.
    """
    return rows * vectors + PANEL_LOAD * vectors + ROW_LOAD * rows


def column_cost(vectors: int, cpu: Cpu) -> float:
    """Time for one column of tiles of so many vectors in a row, relative to that of the best."""

    def cost(vectors: int) -> float:
        rows = most_rows(vectors, cpu)
        return tile_cost(rows, vectors) / (rows * vectors)

    return cost(vectors) / min(map(cost, WIDTHS))


def pick_lanes(extent: int, dtype: DType, cpu: Cpu, height: int = 1) -> int:
    """Columns of a tile: those that cover the extent, with tiles of its rows, in the least time.

    Few rows leave registers free: their tiles are wider, as memory is read in longer runs then.
    """
    vector = cpu.vector_bytes // dtype.bytes
    fits = [v for v in WIDTHS if v * vector <= extent]
    if not fits:
        return 1 << (extent.bit_length() - 1)  # part of a vector; the last tile starts early

    def cost(vectors: int) -> float:
        rows = pick_rows(height, vectors * vector, dtype, cpu)
        return -(-extent // (vectors * vector)) * -(-height // rows) * tile_cost(rows, vectors)

    best = min(fits, key=lambda v: (cost(v), -v))
    wider = 2 * vector * cpu.cores
    while _fits(2 * best, height, cpu) and extent % (best * wider) == 0:
        best *= 2
    return best * vector


def _fits(vectors: int, rows: int, cpu: Cpu) -> bool:
    """Whether sums fit in registers; what one row alone is multiplied with stays in memory."""
    return vectors <= cpu.sums if rows == 1 else rows <= cpu.most_rows(vectors)


def pick_rows(extent: int, lanes: int, dtype: DType, cpu: Cpu) -> int:
    """Rows of a tile of packed panels."""
    widest = max(WIDTHS) * cpu.vector_bytes // dtype.bytes
    lanes = min(1 << max(lanes.bit_length() - 1, 0), widest)
    vectors = max(1, lanes * dtype.bytes // cpu.vector_bytes)
    most = most_rows(vectors, cpu)
    least = min(PREFERRED_ROWS[vectors], most // 2 + 1)
    return fitting_rows(extent, least, most, lambda rows: tile_cost(rows, vectors))


def memory_of(operand: Node) -> Node:
    """What a product reads for an operand, through windows or as it is."""
    return operand.args[0] if in_windows(operand) else operand


def check_worth(dot: Node, cpu: Cpu) -> None:
    """Raise CannotTile where a library does a dot better, with the reason.

    It has the instructions of the CPU for shapes that ours do not divide. Where it has none it
    multiplies element by element, and where sums are wider than operands it widens these first.
    """
    operand = dot.args[0].dtype
    if operand.bits != 16 or operand != dot.dtype or is_row_of_sums(dot):
        return
    if roles_of(dot, by_lane=True).is_by_lane or any(map(in_windows, dot.args)):
        return
    if known_to_libraries(dot, cpu) and mma_of(dot, cpu) is None:
        raise CannotTile(f"libraries have instructions for products of {operand}")


def is_kept(group: Node, dot: Node) -> bool:
    """Whether the right operand of a group's dot stays from call to call."""
    memory, params = memory_of(dot.args[roles_of(dot, by_lane=True).right]), group.blocks[0].params
    return memory in params and runs_once(maker(behind(group.args[params.index(memory)])))


def tile_of(
    dot: Node, cpu: Cpu, lanes: int = 0, rows: int = 0, is_kept: bool = False
) -> tuple[int, int]:
    """Rows and columns of a tile; those that are given stay.

    `is_kept`: whether the right operand stays from call to call.
    """
    roles, dtype, mma = roles_of(dot, by_lane=True), wide(dot.dtype), mma_of(dot, cpu)
    height = roles.sizes[roles.row] if roles.row else 1
    width = roles.sizes[roles.lane]
    if mma and mma.rows > 1:
        depths = [roles.sizes[n] for n in roles.contracted]
        size = dot.args[0].dtype.bytes
        lanes = lanes or mma_lanes(mma, width, depths, size, cpu, is_kept)
        return rows or mma_rows(mma, height), lanes
    if sums_along_depth(dot, cpu):
        own = depth_tile(roles, cpu)
        return rows or own[0], lanes or own[1]
    vector = cpu.vector_bytes // dtype.bytes
    widths = [lanes] if lanes else [n * vector for n in WIDTHS if n * vector <= width]
    shared = shared_tile(dot, roles, widths or [1 << (width.bit_length() - 1)], rows, cpu)
    if shared is not None:
        return shared
    others = 1 if mma and mma.offset else 0  # rows of sums, where few are multiplied in place
    lanes = lanes or pick_lanes(width, dtype, cpu, (rows or height) + others)
    return rows or pick_rows(height, lanes, dtype, cpu), lanes


def tile_and_mma(dot: Node, cpu: Cpu, lanes: int = 0, rows: int = 0) -> tuple[int, int, Mma | None]:
    """The same, and the instruction that does it.

    Raises CannotTile where no part of a panel fits.
    """
    rows, lanes = tile_of(dot, cpu, lanes, rows)
    roles, mma, operand = roles_of(dot, by_lane=True), mma_of(dot, cpu), dot.args[0].dtype
    left = operand_names(dot, roles.left)
    deepest = roles.sizes[max(roles.contracted, key=left.index)]
    mma = mma and cpu.mma(product_types(dot), rows, lanes, deepest)
    panel = lanes, (operand if mma else wide(dot.dtype)).bytes
    walk = walk_of(roles.contracted, left, roles.sizes, panel, cpu, mma)
    if walk.block is None:
        size = roles.sizes[walk.cut]
        raise CannotTile(f"a contracted axis of {size} has no blocks of equal size")
    return rows, lanes, mma


def is_row_of_sums(dot: Node) -> bool:
    """A vector times a matrix whose contracted axis lies together: a reduction, not a tile."""
    if not result_names(dot):
        return True
    roles = roles_of(dot, by_lane=True)
    if not roles.row:
        last = operand_names(dot, roles.right)[-1]
        return last != roles.lane and last in roles.contracted
    return roles.sizes[roles.lane] == 1 and operand_names(dot, roles.left)[-1] in roles.contracted
