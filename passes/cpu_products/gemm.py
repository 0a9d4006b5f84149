"""Tiles of matmuls on a CPU: rows and columns of accumulators in registers, and instructions.

The policy `passes/policies/cpu_products.py` lowers matmuls with such tiles. Extents that a tile
does not divide need no second kernel: the last tile starts early and recomputes some elements.

Instructions for narrow types multiply packed columns. They read rows in place, so the contracted
axis of rows must be contiguous. Packing is not profitable for few rows: vector instructions then
read both operands in place. Shapes that no instruction divides are left to a library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from stack.ir.contraction import is_along_depth, product_types
from stack.ir.node import Node
from stack.ir.traits import ends_with_taps, in_windows, is_computed_once, unconverted
from stack.ir.types import DType
from stack.passes.cpu_products.panels import Panels, block_size, run_of
from stack.passes.tiling.contraction import Roles, operand_names, result_names, roles_of
from stack.passes.tiling.frame import CannotTile, wide
from stack.target import Cpu, Mma

PREFERRED_ROWS = {4: 4, 2: 7, 1: 12}  # by vectors in a row: enough accumulators, short code
MOST_ROWS = max(PREFERRED_ROWS.values())
# vectors in a row: LLVM splits vectors into scalars unless their size is a power of two
WIDTHS = tuple(PREFERRED_ROWS)


def most_rows(vectors: int, cpu: Cpu) -> int:
    """Returns the largest number of rows of a matmul tile whose sums fit in registers, if each row
    has `vectors` vectors of columns.
    """
    return min(cpu.most_rows(vectors), MOST_ROWS)


def tile_cost(rows: int, vectors: int, cpu: Cpu) -> float:
    """Returns the cost of multiplying one element of depth (of the contracted axes) in a tile of
    `rows` rows and `vectors` vectors of columns.

    A tile loads each of its vectors of the panel once, and one element for each of its rows.
    """
    loads = cpu.matmuls.panel_load * vectors, cpu.matmuls.row_load * rows
    return rows * vectors + loads[0] + loads[1]


def column_cost(vectors: int, cpu: Cpu) -> float:
    """Returns the cost of each sum in a tile that is `vectors` vectors wide and has as many rows as
    fit in registers, relative to the best width.
    """

    def cost(vectors: int) -> float:
        rows = most_rows(vectors, cpu)
        return tile_cost(rows, vectors, cpu) / (rows * vectors)

    return cost(vectors) / min(map(cost, WIDTHS))


def pick_lanes(extent: int, dtype: DType, cpu: Cpu, height: int = 1) -> int:
    """Picks the columns of a tile for a matmul with `extent` columns: the width at which covering
    all columns costs least.

    Tiles of few rows leave registers free. They are wider, so that memory is read in longer runs.
    """
    vector = cpu.vector_bytes // dtype.bytes
    fits = [v for v in WIDTHS if v * vector <= extent]
    if not fits:
        return 1 << (extent.bit_length() - 1)  # part of a vector; the last tile starts early

    def cost(vectors: int) -> float:
        rows = pick_rows(height, vectors * vector, dtype, cpu)
        return -(-extent // (vectors * vector)) * -(-height // rows) * tile_cost(rows, vectors, cpu)

    best = min(fits, key=lambda v: (cost(v), -v))
    wider = 2 * vector * cpu.cores
    # the right operand of one row takes no registers, as it stays in memory
    while extent % (best * wider) == 0 and (
        2 * best <= cpu.sums if height == 1 else height <= cpu.most_rows(2 * best)
    ):
        best *= 2
    return best * vector


def pick_rows(extent: int, lanes: int, dtype: DType, cpu: Cpu) -> int:
    """Picks the rows of a tile that multiplies packed panels."""
    widest = max(WIDTHS) * cpu.vector_bytes // dtype.bytes
    lanes = min(1 << max(lanes.bit_length() - 1, 0), widest)
    vectors = max(1, lanes * dtype.bytes // cpu.vector_bytes)
    most = most_rows(vectors, cpu)
    least = min(PREFERRED_ROWS[vectors], most // 2 + 1)
    return fitting_rows(extent, least, most, lambda rows: tile_cost(rows, vectors, cpu))


def memory_of(operand: Node) -> Node:
    """Returns the array that a matmul reads for an operand: the operand itself, or the array under
    its windows.
    """
    return operand.args[0] if in_windows(operand) else operand


def check_worth(dot: Node, cpu: Cpu) -> None:
    """Raise CannotTile, with the reason, if a library computes a dot faster.

    A library uses the matrix instructions of the CPU also for shapes that they do not divide.
    Without such instructions it multiplies element by element. If sums are wider than operands, it
    widens the operands first.
    """
    operand = dot.args[0].dtype
    if operand.bits != 16 or operand != dot.dtype or is_row_of_sums(dot):
        return
    if roles_of(dot, by_lane=True).is_by_lane or any(map(in_windows, dot.args)):
        return
    if known_to_libraries(dot, cpu) and mma_of(dot, cpu) is None:
        raise CannotTile(f"libraries have instructions for products of {operand}")


def is_kept(group: Node, dot: Node) -> bool:
    """True if the right operand of a group's dot is the same array in all calls, such as a weight,
    so that it can be packed once.
    """
    memory, params = memory_of(dot.args[roles_of(dot, by_lane=True).right]), group.blocks[0].params
    return memory in params and is_computed_once(group.args[params.index(memory)])


def tile_of(
    dot: Node, cpu: Cpu, lanes: int = 0, rows: int = 0, is_kept: bool = False
) -> tuple[int, int]:
    """Picks the rows and columns of the tile that computes a dot; `rows` and `lanes` (columns) that
    are not 0 are kept.

    `is_kept`: whether the right operand is the same in all calls.
    """
    roles, dtype, mma = roles_of(dot, by_lane=True), wide(dot.dtype), mma_of(dot, cpu)
    height, width = roles.height, roles.width
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
    others = 1 if mma and mma.offset else 0  # one more row of sums, for the offsets
    lanes = lanes or pick_lanes(width, dtype, cpu, (rows or height) + others)
    return rows or pick_rows(height, lanes, dtype, cpu), lanes


def panels_of(dot: Node, cpu: Cpu, lanes: int = 0, rows: int = 0) -> Panels:
    """Picks the tile that computes a dot, the matrix instruction that multiplies it, and describes
    its panels. `rows` and `lanes` (columns) that are not 0 are kept.

    Raises CannotTile if no block of a panel fits in the cache.
    """
    rows, lanes = tile_of(dot, cpu, lanes, rows)
    roles, mma = roles_of(dot, by_lane=True), mma_of(dot, cpu)
    deepest = roles.sizes[max(roles.contracted, key=operand_names(dot, roles.left).index)]
    mma = mma and cpu.mma(product_types(dot), rows, lanes, deepest)
    panels = Panels(dot, roles, min(rows, roles.height), min(lanes, roles.width), mma, cpu)
    if panels.block is None:
        size = roles.sizes[panels.cut]
        raise CannotTile(f"a contracted axis of {size} has no blocks of equal size")
    return panels


def is_row_of_sums(dot: Node) -> bool:
    """True for a dot of a vector and a matrix whose contracted axis is contiguous: such a dot is
    lowered as a reduction, not in tiles.
    """
    if not result_names(dot):
        return True
    roles = roles_of(dot, by_lane=True)
    if not roles.row:
        last = operand_names(dot, roles.right)[-1]
        return last != roles.lane and last in roles.contracted
    return roles.width == 1 and operand_names(dot, roles.left)[-1] in roles.contracted


def shared_tile(
    dot: Node, roles: Roles, lanes: Sequence[int], rows: int, cpu: Cpu
) -> tuple[int, int] | None:
    """Picks the rows and columns of a tile of a depthwise convolution's result with the least cost.

    Args:
        dot: the convolution, as a dot with windows.
        roles: the roles of its axes.
        lanes: the allowed numbers of columns.
        rows: the number of rows; 0 picks it.
        cpu: the target, whose registers hold a tile.

    Returns:
        Rows and columns. None if the windows of a row do not overlap.
    """
    image, names = unconverted(dot.args[roles.left]), operand_names(dot, roles.left)
    if not (roles.is_by_lane and in_windows(image)):
        return None
    at = image.attrs
    axis = names.index(roles.row) - at["axis"] if roles.row else -1
    if not 0 <= axis < len(at["window"]):
        return None
    count, by, apart = (at[name][axis] for name in ("window", "stride", "dilation"))
    taps, height, width = cpu.taps(count), roles.height, roles.width
    if by % apart or by // apart >= count:
        return None

    def cost(tile: tuple[int, int]) -> tuple[float, int]:
        rows, lanes = tile
        places = {row * by + tap * apart for row in range(rows) for tap in range(taps)}
        loads = (len(places) + taps) / taps
        tiles = -(-height // rows) * -(-width // lanes)
        return tiles * lanes * (rows + cpu.convolutions.load * loads), -lanes

    def most(lanes: int) -> int:
        vectors = max(1, lanes // cpu.lanes)
        return max(1, min(height, cpu.registers // vectors - taps - 1))

    tiles = [(r, n) for n in lanes for r in ([rows] if rows else range(1, most(n) + 1))]
    return min(tiles, key=cost)


# ---- instructions for narrow types


def mma_of(dot: Node, cpu: Cpu) -> Mma | None:
    """Picks the instruction for a matmul; None if none fits. Raises CannotTile as `roles_of`."""
    known = cpu.mmas(product_types(dot))
    if not known or any(map(ends_with_taps, dot.args)):
        return None
    roles = roles_of(dot, by_lane=True)
    depth = operand_names(dot, roles.left)[-1]
    if depth not in roles.contracted:
        return None
    size, few = roles.sizes[depth], roles.height * roles.count(roles.outer)
    is_slow = known[0].rows > 1 and dot.dtype.is_float
    is_few = few <= cpu.matmuls.few_rows
    if is_slow and is_few and (few > cpu.matmuls.slow_rows or is_along_depth(dot)):
        return None  # on such CPUs, vector ones have half the rate of multiply-adds
    if sums_along_depth(dot, cpu):
        vectors = (m for m in known if m.rows == 1)
        return next((m for m in vectors if size % run_of(m, cpu) == 0), None)
    return next((m for m in known if m.covers(roles.height, roles.width, size)), None)


def known_to_libraries(dot: Node, cpu: Cpu) -> bool:
    """True if the CPU has instructions for the operand types, even ones that we do not use."""
    types = product_types(dot)
    return bool(cpu.mmas(types)) or (types[0] == "f16" and "avx512fp16" in cpu.features)


def sums_along_depth(dot: Node, cpu: Cpu) -> bool:
    """True if the vectors of a matmul should run along the contracted axis, each lane with its own
    partial sum.

    It has few rows, its right operand is contiguous along that axis, and the lanes of a vector
    divide it.
    """
    roles = roles_of(dot, by_lane=True)
    if roles.is_by_lane:
        return False
    is_few = roles.height * roles.count(roles.outer) <= cpu.matmuls.few_rows // 2
    return is_few and is_along_depth(dot) and roles.sizes[roles.contracted[-1]] % cpu.lanes == 0


def fitting_rows(extent: int, least: int, most: int, cost: Callable[[int], float]) -> int:
    """Picks the rows of a tile, between `least` and `most`, that cover `extent` rows at the least
    total cost.

    `cost`: the cost of a tile of so many rows.
    """
    if extent <= most:
        return extent
    return min(range(least, most + 1), key=lambda r: (-(-extent // r) * cost(r), r))


def depth_tile(roles: Roles, cpu: Cpu) -> tuple[int, int]:
    """Picks the rows and columns of a tile whose vectors run along the contracted axis, each lane
    with its own partial sum.
    """
    most = cpu.most_rows(cpu.matmuls.depth_columns)
    rows = fitting_rows(roles.height, most // 2 + 1, most, lambda r: r + cpu.matmuls.column_cost)
    return rows, min(cpu.lanes, 1 << (roles.width.bit_length() - 1))


def mma_lanes(
    mma: Mma, extent: int, depths: list[int], width: int, cpu: Cpu, is_kept: bool = False
) -> int:
    """Picks the columns of a tile for an instruction with several rows.

    The panel must fit in its share of the L2 cache. Wide tiles read the left operand less often.

    Args:
        mma: the instruction.
        extent: columns of the matmul.
        depths: extents of the contracted axes.
        width: bytes of an element.
        cpu: the target.
        is_kept: whether panels are packed once for all calls.
    """
    sizes = [mma.lanes << i for i in reversed(range(4))]
    share = cpu.matmuls.kept_share if is_kept else cpu.matmuls.panel_share
    most = share * cpu.cache_bytes // (prod(depths) * width)
    fits = [n for n in sizes if n <= min(extent, most) and block_size(depths, n, width, cpu) == 0]
    return min(
        fits, key=lambda n: -(-extent // n) * (n + mma.lanes / len(sizes)), default=mma.lanes
    )


def mma_rows(mma: Mma, extent: int) -> int:
    """Picks the rows of a tile for a matrix instruction with several rows: the rows of two
    instructions, or of one. A matmul with fewer rows than one instruction has them all in one tile.
    """
    return min(2, extent // mma.rows) * mma.rows or extent


def why_sums(shape: Sequence[int], dtype: DType, mma: Mma | None, cpu: Cpu) -> str:
    """Returns the sums of a tile as text: how many, and the instruction or registers that compute
    them.
    """
    sums = f"{' x '.join(map(str, shape))} sums"
    if mma is not None:
        return f"{sums} by {mma.name}"
    vectors = -(-prod(shape) * dtype.bytes // cpu.vector_bytes)
    return f"{sums} in {vectors} of {cpu.registers} registers"
