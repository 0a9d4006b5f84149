"""Index maps of a stream: the indices of its states and results in the axes of one result, and the
roles of these axes.

A result may depend on other states than that one. It shares axes with it in the loop, since both
are computed from one tile. Its other axes are its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, Expr, bounds, substitute, symbol, symbols
from stack.ir.equivalence import cached_by_class
from stack.ir.node import Block, Node
from stack.ir.ops import is_view
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import (
    converts,
    is_array,
    is_constant,
    is_contraction,
    is_elementwise,
    is_input,
    is_reduction,
)
from stack.passes.positions.index_maps import index_maps_of
from stack.passes.tiling.frame import CannotTile, static


@dataclass(frozen=True)
class IndexMaps:
    """The index of each state and result of a stream, as expressions of a common set of iteration
    variables.
    """

    iter_vars: Index
    states: Mapping[Node, Index]
    results: tuple[Index, ...]


def stream_index_maps(states: Block, correct: Block, ending: Block) -> IndexMaps:
    """Returns the index maps of a stream's states and results, with as few axes as possible.

    Two results may group the same axes differently. Then one is indexed by the other's axes, if the
    other need not be indexed by its own. Raises CannotTile.
    """
    roots = sorted(ending.results, key=lambda n: -static(n.tensor.size))
    found: list[IndexMaps] = []
    refusal = "it has no results"
    for root in dict.fromkeys(roots):
        try:
            found.append(_Placing(states, correct, ending).places(root))
        except CannotTile as why:
            refusal = str(why)
    if not found:
        raise CannotTile(refusal)
    return min(found, key=lambda p: len(p.iter_vars))


class _Placing:
    def __init__(self, states: Block, correct: Block, ending: Block) -> None:
        self.inner, self.correct, self.ending = states, correct, ending
        # a state may occur twice: one node, with two parameters in each block
        self.pairs = list(zip(states.results, ending.params, strict=False))
        self.params = dict(self.pairs)
        self.iter_vars: list[Dim] = []
        self.states: dict[Node, Index] = {}
        self.results: dict[Node, Index] = {}

    def places(self, root: Node) -> IndexMaps:
        self._enter(index_maps_of(self.ending, root, self._fresh(root)))
        while True:
            self._follow_corrections()
            missing = [s for s in self.params if s not in self.states]
            if not missing:
                break
            if not any(self._join(state) for state in missing):
                raise CannotTile("one of its states has no index among its results")
        if not self.results.keys() >= set(self.ending.results):
            for state, param in self.pairs:  # all parameters of a state that occurs twice
                self._enter(index_maps_of(self.ending, param, self.states[state]))
        if not self.results.keys() >= set(self.ending.results):
            raise CannotTile("its outputs do not share one index space")
        results = tuple(self.results[r] for r in self.ending.results)
        used = {s for p in (*self.states.values(), *results) for d in p for s in symbols(d)}
        return IndexMaps(
            tuple(m for m in self.iter_vars if symbols(m) & used), self.states, results
        )

    def _fresh(self, node: Node) -> Index:
        start = len(self.iter_vars)
        sizes = [max(static(s) - 1, 0) for s in node.shape]
        made = tuple(symbol(f"d{start + i}", 0, size) for i, size in enumerate(sizes))
        self.iter_vars.extend(made)
        return made

    def _enter(self, found: Mapping[Node, Index]) -> None:
        """Records the indices of states and results in `found`, which are those that the block
        `finish` determines from a known one."""
        for state, param in self.pairs:
            if param in found:
                self.states.setdefault(state, found[param])
        for result in self.ending.results:
            if result in found:
                self.results.setdefault(result, found[result])

    def _follow_corrections(self) -> None:
        """Follows corrections: a state has the index at which another's correction reads it."""
        order = [state for state, _ in self.pairs]
        count = len(order)
        for i, state in enumerate(order):
            if state not in self.states:
                continue
            found = index_maps_of(self.correct, self.correct.results[i], self.states[state])
            for j, other in enumerate(order):
                for param in (self.correct.params[j], self.correct.params[count + j]):
                    if other not in self.states and param in found:
                        self.states[other] = found[param]
                        self._enter(index_maps_of(self.ending, self.params[other], found[param]))

    def _join(self, state: Node) -> bool:
        """Derives the index of a state from operands that it shares with states whose index is
        known. Returns whether this succeeded.
        """
        known: dict[Node, Index] = {}
        for other, place in self.states.items():
            known.update(self._inside(other, place))
        start = len(self.iter_vars)
        fresh = self._fresh(state)
        table: dict[str, Dim] = {}
        for node, index in self._inside(state, fresh).items():
            for own, at in zip(index, known.get(node, ()), strict=False):
                if own in fresh and own != 0:
                    table.setdefault(str(own), at)
        if not table or not _covers(table, fresh):
            del self.iter_vars[start:]
            return False
        place = tuple(substitute(d, table) for d in fresh)
        self.states[state] = place
        self._enter(index_maps_of(self.ending, self.params[state], place))
        return True

    def _inside(self, state: Node, place: Index) -> dict[Node, Index]:
        """Returns the index at which a state of index `place` reads its operands, and these read
        theirs, in one iteration of the stream.
        """
        found: dict[Node, Index] = {}
        for operand, index in operands_of(state, place):
            at = index_maps_of(self.inner, operand, index)
            found.update({n: p for n, p in at.items() if not is_constant(n)})
        return found


def _covers(table: Mapping[str, Dim], iter_vars: Index) -> bool:
    """True if the expressions in `table`, which replace iteration variables, take each combination
    of the values of these variables exactly once."""
    told = [m for m in iter_vars if str(m) in table]
    if any(bounds(table[str(m)]) != bounds(m) for m in told):
        return False
    known = {s for at in table.values() for s in symbols(at)}
    values = prod(s.high - s.low + 1 for s in known)
    return values == prod(bounds(m)[1] + 1 for m in told)


def operand_place(state: Node, place: Index, key: Dim, side: int = 0) -> Index:
    """Returns the index at which a state of a stream, a reduction or matmul over its axis, reads
    one of its operands.

    Args:
        state: the state.
        place: the index of the state.
        key: the position along the streamed axis.
        side: the number of the operand.
    """
    if is_reduction(state):
        ((_, position),) = streamed_axes(state)
        return (*place[:position], key, *place[position:])
    rule = parse_rule(state.attrs["rule"])
    found = {a.names[0]: d for a, d in zip(rule.outputs[0], place, strict=True)}
    found[rule.reduced[0]] = key
    return tuple(found[a.names[0]] for a in rule.inputs[side])


def operands_of(state: Node, place: Index) -> Iterator[tuple[Node, Index]]:
    """Yields the operands that a state reduces along the streamed axis, each with its index; the
    symbol `streamed` is the position along that axis.
    """
    for side, (operand, position) in enumerate(streamed_axes(state)):
        key = symbol("streamed", 0, max(static(operand.shape[position]) - 1, 0))
        yield operand, operand_place(state, place, key, side)


def index_in_pass(states: Block, at: Mapping[Node, Index], target: Node) -> Index | None:
    """Returns the index at which one iteration of a stream reads node `target`.

    None if it reads the node at several indices, or not at all. An axis of one element has the
    index 0.
    """
    pending = [pair for state in states.results for pair in operands_of(state, at[state])]
    seen: set[tuple[Node, Index]] = set()
    found: set[Index] = set()
    while pending:
        node, index = pending.pop()
        if node is target:
            found.add(tuple(0 if bounds(d) == (0, 0) else d for d in index))
        elif (node, index) not in seen:
            seen.add((node, index))
            if is_elementwise(node):
                pending.extend((a, index if a.tensor.rank else ()) for a in node.args)
            elif ops.is_whole_view(node):
                pending.append((node.args[0], ops.pull(node, index)[0]))
    return found.pop() if len(found) == 1 else None


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
    """Derives the roles of a stream's axes from the indices of its states and results."""
    kept = {s for place in where.states.values() for d in place for s in symbols(d)}
    lanes, rows = _sides(where.states)
    extents = {str(m): bounds(m)[1] + 1 for m in where.iter_vars}
    row = ""
    if has_dot:
        # the longest, and of equally long ones the last, which is closest in memory
        iter_vars = [m for m in extents if m not in lanes]
        single = {str(d) for place in where.states.values() for d in place}
        found = [m for m in iter_vars if m in rows] or [m for m in iter_vars if m in single]
        row = max(reversed(found), key=lambda m: extents[m], default="")
    along = (str(m) for m in where.iter_vars if extents[str(m)] > 1 and not symbols(m) & kept)
    column = next((n for n in lanes if extents[n] > 1), "")
    wide = [s for s, place in where.states.items() if column in map(str, place)]
    return StreamShape(row, lanes, next(along, ""), extents, where.states, column, wide)


def _sides(places: Mapping[Node, Index]) -> tuple[frozenset[str], set[str]]:
    """Returns the axes that only a dot's operand in memory has, of which a tile has all elements,
    and the iteration variables that only the computed operand has: those of rows.

    A result may group axes of a state: its mark is then part of several of them.
    """
    lanes: set[str] = set()
    own: set[str] = set()
    for state, place in places.items():
        if not is_contraction(state):
            continue
        rule = parse_rule(state.attrs["rule"])
        names = [{a.names[0] for a in operand} for operand in rule.inputs]
        side = memory_side(state)
        rows: set[str] = set()
        others: set[str] = set()
        for axis, dim in zip(rule.outputs[0], place, strict=True):
            if axis.names[0] in names[side] - names[1 - side] and isinstance(dim, Expr):
                lanes.add(str(dim))
            is_own = axis.names[0] in names[1 - side] - names[side]
            (rows if is_own else others).update(str(m) for m in symbols(dim))
        own |= rows - others
    return frozenset(lanes), own


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
