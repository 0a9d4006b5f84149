"""Windows: a tile that reads memory along a line of its places reads one short run of it.

Rows m and columns k of a tile that read at c + k - m meet no more than rows + columns - 1 different
elements, each many times: a table of relative positions, a Toeplitz matrix. The run they lie in is
read once, side by side, and each element of the tile is picked from it; so what memory gives need
not be in the layout of threads that the tile has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from stack.ir.axes import Index
from stack.ir.dim import Dim, add, mul, substitute
from stack.passes.blocking.frame import BlockFrame, NamedTile
from stack.passes.positions.affine import slope
from stack.passes.tiling.frame import power_of_two

MOST = 1024  # elements of a window
SHARE = 0.5  # of the elements of the tile that it may hold at most


@dataclass(frozen=True)
class Window:
    """A run of memory, and how a tile reads it.

    Attributes:
        dim: the axis of the memory that it lies along.
        slopes: how far one step of each tile axis moves.
        span: elements from the first that a tile reads to the last.
        first: where it begins; below 0 where tiles reach past the end of their axes.
    """

    dim: int
    slopes: Mapping[str, int]
    span: int
    first: Dim

    @property
    def extent(self) -> int:
        return power_of_two(self.span)


def window_of(frame: BlockFrame, index: Index) -> Window | None:
    """The window that a read at an index has; None where another way to read it is as good."""
    moving = [i for i, d in enumerate(index) if frame.tile_axes(d)]
    if len(moving) != 1:
        return None
    place = index[moving[0]]
    slopes = slopes_of(frame, place)
    if slopes is None or len(slopes) < 2:
        return None
    blocks = {name: frame.axes[name].block for name in slopes}
    span = 1 + sum(abs(c) * (blocks[name] - 1) for name, c in slopes.items())
    extent = power_of_two(span)
    if extent > MOST or extent > SHARE * prod(blocks.values()):
        return None
    back = sum(-c * (blocks[name] - 1) for name, c in slopes.items() if c < 0)
    return Window(moving[0], slopes, span, add(start_of(frame, place, slopes), -back))


def start_of(frame: BlockFrame, place: Dim, slopes: Mapping[str, int]) -> Dim:
    """An index at the first element of the tile."""
    starts: dict[str, Dim] = {}
    for name in slopes:
        axis = frame.axes[name]
        last = (axis.extent - 1) // axis.block * axis.block
        starts[name] = frame.data_symbol(NamedTile(axis.start), last + 1)
    return substitute(place, starts)


def slopes_of(frame: BlockFrame, place: Dim) -> dict[str, int] | None:
    """How an index moves along each tile axis; None where that is no line."""
    found: dict[str, int] = {}
    for name in frame.tile_axes(place):
        step = slope(place, name)
        if not isinstance(step, int):
            return None
        if name in frame.tile_axes(add(place, mul(frame.axes[name].place, -step))):
            return None
        found[name] = step
    return found
