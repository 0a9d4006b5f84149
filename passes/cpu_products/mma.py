"""Matmuls by instructions for narrow types: picks the instruction of a matmul, and its tile.

The right operand is packed. The left one is read in place, so its contracted axis must be
contiguous. Packing is not profitable for few rows: vector instructions then read both operands in
place. Shapes that no instruction divides are left to a library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from stack.ir.contraction import is_along_depth, product_types
from stack.ir.node import Node
from stack.ir.traits import ends_with_taps
from stack.ir.types import DType
from stack.passes.cpu_products.panels import block_size, run_of
from stack.passes.tiling.contraction import Roles, operand_names, roles_of
from stack.target import Cpu, Mma


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
