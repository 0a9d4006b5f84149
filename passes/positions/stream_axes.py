"""The axis of a stream that vectors run along, and the one of rows of memory."""

from __future__ import annotations

from stack.ir.equivalence import cached_by_class
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.passes.positions.stream_index_maps import stream_index_maps
from stack.passes.positions.stream_shape import stream_shape
from stack.passes.tiling.frame import CannotTile


class StreamAxes:
    """The axis of the rows of a stream, and the axis of its columns.

    Every state has the rows; wide states, which are dots, the columns too.

    Attributes:
        placed: the indices of states and results.
        sizes: the extent of each axis.
        row: the axis of the rows.
        column: the axis of the columns; "" if no state has columns.
    """

    def __init__(self, stream: Node) -> None:
        self.placed = stream_index_maps(*stream.blocks)
        shape = stream_shape(self.placed, True)
        self.sizes, self.row = shape.extents, shape.row
        if shape.along:
            raise CannotTile("a result is as long as the streamed axis")
        columns = [n for n in shape.lanes if self.sizes[n] > 1]
        if len(columns) > 1:
            raise CannotTile("its states have several axes of columns")
        self.column = next(iter(columns), "")
        self.columns = self.sizes.get(self.column, 1)
        self.wide = [s for s, at in self.placed.states.items() if self.column in map(str, at)]
        if not all(map(is_contraction, self.wide)):
            raise CannotTile(f"a state of {self.columns} columns is a sum, and no product")


@cached_by_class
def stream_axes(stream: Node) -> StreamAxes:
    """Returns the row and column axes of a stream, computed once for its cost model, schedule and
    kernel.

    Raises CannotTile if a result is as long as the streamed axis, if states have several axes of
    columns, or if a state with columns is no matmul.
    """
    return StreamAxes(stream)
