"""Results of a stream on a CPU, from states with rows along the vector lanes."""

from __future__ import annotations

from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.dim import Dim, substitute
from stack.ir.node import Node
from stack.ir.types import I64, TensorType
from stack.passes.exact_tiling.stream_axes import StreamAxes
from stack.passes.exact_tiling.stream_dot import StreamProducts, names_in
from stack.passes.tiling.frame import CannotTile, wide


class StreamResults(StreamProducts):
    """Stores of rows and columns.

    Attributes:
        axes: which axes of the stream are its rows and its columns.
        values: the place of each mark in the kernel.
    """

    axes: StreamAxes

    def __init__(self, stream: Node) -> None:
        super().__init__(stream)
        self.values: dict[str, Dim] = {}

    def _store_rows(self, result: Node, memory: Node, place: Index) -> Node:
        """A result: columns of wide ones go to local memory first, and from there turned."""
        at = tuple(substitute(d, self.values) for d in place)
        column, columns = self.axes.column, self.axes.columns
        if not any(column in names_in(d) for d in at):
            return self.store(memory, self.narrow(self.value(result, at, None), result.dtype), at)
        names = ["e" if column in names_in(d) else "t" if self.is_tile(d) else "" for d in at]
        if "t" not in names:
            raise CannotTile("a result has no rows")
        step = self.variable("e", columns)
        dtype = wide(result.dtype)
        held = self.local("out", (columns, self.tile), self.program, dtype)

        def row(memories: list[Node]) -> list[Node]:
            index = tuple(substitute(d, {column: step}) for d in at)
            return [self.keep(memories[0], self.value(result, index, None), step)]

        (held,) = self.over(step, [held], row)
        zero = constant(0, I64)
        whole = self.b.load(held, zero, zero, type=TensorType(dtype, held.shape, "tile"))
        if names.index("t") < names.index("e"):
            whole = self.b.transpose(whole, perm=(1, 0))
        whole = self.narrow(whole, result.dtype)
        first = min(names.index("e"), names.index("t"))
        shape = tuple({"e": columns, "t": self.tile, "": 1}[n] for n in names[first:])
        if shape != whole.shape:
            whole = self.b.reshape(whole, type=whole.tensor.with_shape(shape))
        start = [self.number(substitute(d, {column: 0, "t": 0})) for d in at]
        return self.b.store(memory, whole, *start)


__all__ = ["StreamResults"]
