"""Products by instructions for short numbers: which one a product goes by, and its tiles.

The right operand is packed for them, so that they pay where many rows follow; the left one is
read where it is, so that its contracted axis has to lie together. What no instruction divides
into is left to a library.
"""

from __future__ import annotations

from math import prod

from stack.ir.contraction import product_types
from stack.ir.node import Node
from stack.passes.cpu_loops.pack import FEW_ROWS, block_size
from stack.passes.tiling.contraction import operand_names, roles_of
from stack.target import Cpu, Mma


def mma_of(dot: Node, cpu: Cpu) -> Mma | None:
    """The instruction for a product, if there is one. Raises CannotTile as `roles_of`."""
    known = cpu.mmas(product_types(dot))
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
    """Columns of a tile of an instruction that has rows, in the least time; the panel stays near.

    Wide tiles read the left operand less often. `width`: bytes of an element.
    """
    sizes = [mma.lanes << i for i in reversed(range(4))]
    fits = [n for n in sizes if n <= extent and block_size(depths, n, width, cpu) == 0]
    return min(
        fits, key=lambda n: -(-extent // n) * (n + mma.lanes / len(sizes)), default=mma.lanes
    )


def mma_rows(mma: Mma, extent: int) -> int:
    """Rows of a tile of an instruction that has rows: those of two, where they fit."""
    return min(2, extent // mma.rows) * mma.rows
