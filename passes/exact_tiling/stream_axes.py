"""Which axes of a stream with a product are its rows, and which its columns."""

from __future__ import annotations

from collections.abc import Container

from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, Expr, bounds, symbols
from stack.ir.node import Node
from stack.ir.ops import is_view
from stack.ir.traits import converts, is_contraction
from stack.passes.blocking.stream_index_maps import stream_index_maps
from stack.passes.tiling.frame import CannotTile

MOST_COLUMNS = 256  # of a state: its columns stay in the first two levels of cache


def own_axes(state: Node, place: Index, side: int) -> list[Dim]:
    """Where a dot that is a state sits along the axes of one of its operands alone."""
    rule = parse_rule(state.attrs["rule"])
    names = [{a.names[0] for a in operand} for operand in rule.inputs]
    return [
        dim
        for axis, dim in zip(rule.outputs[0], place, strict=True)
        if axis.names[0] in names[side] - names[1 - side] and isinstance(dim, Expr)
    ]


class StreamAxes:
    """Which axes of a stream with a product are its rows and its columns.

    Columns are an axis of a dot that only its operand in memory has; rows are the longest one that
    this operand has not. Every state has the rows, wide states the columns too.

    Args:
        in_memory: parameters and tables of the block `states`.
    """

    def __init__(self, stream: Node, in_memory: Container[Node]) -> None:
        self.in_memory = in_memory
        self.placed = stream_index_maps(*stream.blocks)
        self.kept = {
            s.name for place in self.placed.states.values() for d in place for s in symbols(d)
        }
        self.sizes = {str(m): bounds(m)[1] + 1 for m in self.placed.iter_vars}
        self.wide = [s for s in self.placed.states if is_contraction(s) and self._columns(s)]
        columns = {str(d) for s in self.wide for d in self._columns(s)}
        if len(columns) > 1:
            raise CannotTile("its states have several axes of columns")
        self.column = next(iter(columns), "")
        self.columns = self.sizes.get(self.column, 1)
        for state, place in self.placed.states.items():
            if state not in self.wide and self.column in map(str, place):
                raise CannotTile(f"a state of {self.columns} columns is a sum, and no product")
        if self.columns > MOST_COLUMNS:
            raise CannotTile(f"a state of {self.columns} columns")
        self.shared = [n for n in self.sizes if n in self.kept and n != self.column]
        own: set[str] = set()
        for state, place in self.placed.states.items():
            if is_contraction(state):
                own.update(map(str, own_axes(state, place, 1 - self.side(state))))
        found = [m for m in self.shared if m in own] or self.shared
        self.row = max(found, key=lambda m: self.sizes[m], default="")

    def side(self, state: Node) -> int:
        """Which operand of a dot lies in memory."""
        return 1 if self._is_view(state.args[1]) or not self._is_view(state.args[0]) else 0

    def _is_view(self, node: Node) -> bool:
        while is_view(node) or converts(node):
            node = node.args[0]
        return node in self.in_memory

    def _columns(self, state: Node) -> list[Dim]:
        place = self.placed.states[state]
        return [d for d in own_axes(state, place, self.side(state)) if bounds(d)[1] > 0]
