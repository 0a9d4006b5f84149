"""Results of a stream on a CPU, from states with rows along the vector lanes."""

from __future__ import annotations

from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.dim import Dim, substitute
from stack.ir.node import Node
from stack.ir.types import I64, TensorType
from stack.passes.blocking.frame import NamedTile
from stack.passes.exact_tiling.stream_axes import StreamAxes
from stack.passes.exact_tiling.stream_dot import StreamProducts
from stack.passes.exact_tiling.tiler import names_in
from stack.passes.tiling.frame import CannotTile, wide


class StreamResults(StreamProducts):
    """Stores of rows and columns.

    Attributes:
        roles: which axes of the stream are its rows and its columns.
        values: the place of each iteration variable in the kernel.
    """

    roles: StreamAxes

    def __init__(self, stream: Node) -> None:
        super().__init__(stream)
        self.values: dict[str, Dim] = {}

    def _store_rows(self, result: Node, memory: Node, place: Index) -> Node:
        """A result: columns of wide ones go to local memory first, and from there turned."""
        at = tuple(substitute(d, self.values) for d in place)
        column, columns, lane = self.roles.column, self.roles.columns, self.lane
        if column not in names_in(at):
            return self.store(memory, self.value(result, at), at)
        names = ["e" if column in names_in([d]) else "t" if self.tile_axes(d) else "" for d in at]
        if "t" not in names:
            raise CannotTile("a result has no rows")
        step = self.loop_axis("e", columns)
        dtype = wide(result.dtype)
        index = tuple(substitute(d, {column: step.place}) for d in at)
        held = self.over(
            step,
            self.local("out", (columns, lane.block), self.program, dtype),
            lambda m: self.keep(m, self.value(result, index), step.place),
        )
        zero = constant(0, I64)
        whole = self.b.load(held, zero, zero, type=TensorType(dtype, held.shape, "tile"))
        if names.index("t") < names.index("e"):
            whole = self.b.transpose(whole, perm=(1, 0))
        whole = self.cast(NamedTile(whole), result.dtype).node
        first = min(names.index("e"), names.index("t"))
        shape = tuple({"e": columns, "t": lane.block, "": 1}[n] for n in names[first:])
        if shape != whole.shape:
            whole = self.b.reshape(whole, type=whole.tensor.with_shape(shape))
        origin: dict[str, Dim] = {column: 0, lane.name: self.begin}
        start = [self.number(substitute(d, origin)).node for d in at]
        return self.b.store(memory, whole, *start)


__all__ = ["StreamResults"]
