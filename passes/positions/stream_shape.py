"""The axes of a stream with a matmul, derived from its blocks before any lowering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, Expr, symbols
from stack.ir.equivalence import cached_by_class
from stack.ir.node import Node
from stack.ir.ops import is_view
from stack.ir.traits import converts, is_array, is_contraction, is_input
from stack.passes.positions.stream_index_maps import IndexMaps, stream_index_maps
from stack.passes.tiling.frame import CannotTile


@dataclass(frozen=True)
class StreamShape:
    """The roles of the axes of a stream's states and results, named by their iteration variables.

    Attributes:
        row: the axis of the rows of a tile; "" if it has none.
        lanes: the axes that a tile has in full.
        along: the streamed axis, if a result has it; else "".
        extents: the extent of each axis.
        states: the index of each state.
        column: the only axis of columns; "" if no state has columns.
        wide: the states that have the columns.
    """

    row: str
    lanes: frozenset[str]
    along: str
    extents: Mapping[str, int]
    states: Mapping[Node, Index]
    column: str
    wide: Sequence[Node]

    @property
    def is_split(self) -> bool:
        """True if partial states may be merged: no result has the streamed axis."""
        return not self.along

    @property
    def rows(self) -> int:
        """Extent of the axis of the rows."""
        return self.extents.get(self.row, 1)

    @property
    def batch(self) -> int:
        """The number of tiles of rows and columns: the product of all other extents."""
        return prod(n for m, n in self.extents.items() if m != self.row and m not in self.lanes)

    @property
    def columns(self) -> int:
        """Extent of the axis of the columns."""
        return self.extents.get(self.column, 1)


def stream_shape(where: IndexMaps, has_dot: bool) -> StreamShape:
    """Derives the roles of a stream's axes from the indices of its states and results. Raises
    CannotTile if an axis has no constant extent.
    """
    kept = {s for place in where.states.values() for d in place for s in symbols(d)}
    lanes = _lanes(where.states)
    extents = {str(m): extent_of(m) for m in where.iter_vars}
    iter_vars = [m for m in extents if m not in lanes]
    row = _row(where.states, iter_vars, extents) if has_dot else ""
    along = (str(m) for m in where.iter_vars if extents[str(m)] > 1 and not symbols(m) & kept)
    column = next((n for n in lanes if extents[n] > 1), "")
    wide = [s for s, place in where.states.items() if column in map(str, place)]
    return StreamShape(row, lanes, next(along, ""), extents, where.states, column, wide)


def _row(places: Mapping[Node, Index], iter_vars: Sequence[str], extents: Mapping[str, int]) -> str:
    """The iteration variable of the rows of a tile: the longest that the operand in memory does
    not have, and of equally long ones the last, which is closest in memory.

    A result may group axes of a state: its mark is then part of several of them.
    """
    own: set[str] = set()
    for state, place in places.items():
        if is_contraction(state):
            rule = parse_rule(state.attrs["rule"])
            names = [{a.names[0] for a in operand} for operand in rule.inputs]
            other = 1 - memory_side(state)
            rows: set[str] = set()
            others: set[str] = set()
            for axis, dim in zip(rule.outputs[0], place, strict=True):
                is_own = axis.names[0] in names[other] - names[1 - other]
                (rows if is_own else others).update(str(m) for m in symbols(dim))
            own |= rows - others
    kept = {str(d) for place in places.values() for d in place}
    found = [m for m in iter_vars if m in own] or [m for m in iter_vars if m in kept]
    return max(reversed(found), key=lambda m: extents[m], default="")


def memory_side(state: Node) -> int:
    """Returns which operand of a dot, 0 or 1, is read from memory while the other is computed by
    the stream; 1 if both or neither are in memory.
    """
    return 0 if is_in_memory(state.args[0]) and not is_in_memory(state.args[1]) else 1


def is_in_memory(node: Node) -> bool:
    """True if a value in a stream is an array in memory or a view of one, not a computed value."""
    while is_view(node) or converts(node):
        node = node.args[0]
    return is_input(node) or is_array(node)


def _lanes(places: Mapping[Node, Index]) -> frozenset[str]:
    """Returns the axes that only a dot's operand in memory has, not the computed operand.

    A tile has all elements along them.
    """
    found: set[str] = set()
    for state, place in places.items():
        if not is_contraction(state):
            continue
        rule = parse_rule(state.attrs["rule"])
        own = [{a.names[0] for a in operand} for operand in rule.inputs]
        side = memory_side(state)
        for axis, dim in zip(rule.outputs[0], place, strict=True):
            name = axis.names[0]
            if name in own[side] and name not in own[1 - side] and isinstance(dim, Expr):
                found.add(str(dim))
    return frozenset(found)


def extent_of(iter_var: Dim) -> int:
    """Returns the number of values that an iteration variable takes. Raises CannotTile for a dim
    that is no variable with a constant bound.
    """
    if isinstance(iter_var, Expr) and len(iter_var.terms) == 1 and len(iter_var.terms[0][0]) == 1:
        high = getattr(iter_var.terms[0][0][0], "high", None)
        if isinstance(high, int):
            return high + 1
    raise CannotTile(f"a state sits at a computed index, {iter_var}")


@cached_by_class
def stream_axes(stream: Node) -> StreamShape:
    """Returns the axes of a stream whose states have rows and at most one axis of columns, computed
    once for its cost model, schedule and kernel.

    Raises CannotTile if a result is as long as the streamed axis, if states have several axes of
    columns, or if a state with columns is no matmul.
    """
    found = stream_shape(stream_index_maps(*stream.blocks), True)
    if found.along:
        raise CannotTile("a result is as long as the streamed axis")
    if sum(found.extents[n] > 1 for n in found.lanes) > 1:
        raise CannotTile("its states have several axes of columns")
    if not all(map(is_contraction, found.wide)):
        raise CannotTile(f"a state of {found.columns} columns is a sum, and no product")
    return found
