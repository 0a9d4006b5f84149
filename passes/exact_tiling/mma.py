"""Products by instructions for short floats: which one a product goes by, and its tiles.

The right operand is packed for them, so that they pay where many rows follow; the left one is
read where it is, so that its contracted axis has to lie together. What no instruction divides
into is left to a library.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from stack.ir.node import Node
from stack.passes.cpu_loops.pack import FEW_ROWS, block_size
from stack.passes.tiling.contraction import operand_names, roles_of
from stack.target import Cpu, Mma

# time for one column relative to the widest tile: wide ones read the left operand less often
LANE_COST = {128: 1.0, 64: 1.03, 32: 1.06, 16: 1.4}
ROW_COST = {32: 1.0, 16: 1.4}  # likewise


def mma_of(dot: Node, cpu: Cpu) -> Mma | None:
    """The instruction for a product, if there is one. Raises CannotTile as `roles_of`."""
    known = cpu.mmas(dot.args[0].dtype.name)
    if not known:
        return None
    roles = roles_of(dot)
    sizes, depth = roles.sizes, roles.contracted[-1]
    rows = sizes[roles.row] if roles.row else 1
    is_run = operand_names(dot, roles.left)[-1] == depth
    if not is_run or rows * prod(sizes[n] for n in roles.outer) <= FEW_ROWS:
        return None
    lanes = sizes[roles.lane]
    return next((m for m in known if _divides(m, rows, lanes, sizes[depth])), None)


def _divides(mma: Mma, rows: int, lanes: int, depth: int) -> bool:
    """Whether whole tiles cover a product: the last of rows and of lanes may start early."""
    return rows >= mma.rows and lanes >= mma.lanes and depth % mma.depth == 0


def mma_lanes(mma: Mma, extent: int, depths: list[int], width: int, cpu: Cpu) -> int:
    """Columns of a tile of an instruction that has rows: the packed panel stays near.

    `width`: bytes of an element.
    """
    fits = {n: c for n, c in LANE_COST.items() if block_size(depths, n, width, cpu) == 0}
    return _covering(fits, extent, mma.lanes)


def mma_rows(mma: Mma, extent: int) -> int:
    """Rows of a tile of an instruction that has rows."""
    return _covering(ROW_COST, extent, mma.rows)


def _covering(costs: Mapping[int, float], extent: int, least: int) -> int:
    """The size of tiles that cover an extent in the least time."""
    fits = [n for n in costs if n <= extent]
    return min(fits, key=lambda n: -(-extent // n) * n * costs[n], default=least)
