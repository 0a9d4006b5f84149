"""The order of a kernel's programs: those that read the same memory run side by side.

An operand that does not depend on an axis of the grid is read again by every program along it. What
the cache holds stays there. Axes along which more is read again run fastest, the shortest of them
first of all: then the programs that run at a time differ along each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stack.ir.node import Node
from stack.passes.tiling.frame import static

Grid = list[tuple[Node, int]]


def rasterized(
    grid: Grid,
    names: Mapping[Node, str],
    met: Mapping[Node, Collection[str]],
    cache_bytes: int,
) -> Grid:
    """A grid in that order; its last axis is the innermost.

    Args:
        grid: loop variables with extents.
        names: the axis of each variable.
        met: memory that is read, with the axes that the places in it depend on.
        cache_bytes: what the cache holds.
    """
    large = [axes for m, axes in met.items() if static(m.tensor.size) * m.dtype.bytes > cache_bytes]

    def order(entry: tuple[Node, int]) -> int:
        var, count = entry
        return -count if any(names[var] not in axes for axes in large) else -(1 << 62)

    return sorted(grid, key=order)
