"""Which steps of a stream a comparison of positions leaves, and where it holds throughout.

A condition that is affine in the positions, such as i >= j, hides whole tiles on one side of a
line. Where all that the states make of a hidden element is the identity of their reductions, those
tiles are left out, and between them and the line no element needs the comparison. (What is hidden
counts as nothing: an infinity there does not become a nan.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.dim import Dim, Expr, Symbol, add, mul, substitute, symbols
from stack.ir.node import Block, Node
from stack.ir.traits import choice, is_elementwise
from stack.passes.blocking.fold import BlockFold
from stack.passes.blocking.frame import Axis, BlockFrame, NamedTile
from stack.passes.positions.affine import slope
from stack.passes.positions.stream_operands import operands_of
from stack.passes.positions.visible import hiding_selects, seen


@dataclass(frozen=True)
class Segment:
    """A run of steps.

    Attributes:
        limits: the first step and the one past the last; None for all of them.
        fixed: selects whose condition is known there, with the operand that they give.
    """

    limits: tuple[Node, Node] | None = None
    fixed: Mapping[Node, Node] = field(default_factory=dict[Node, Node])


def segments(
    frame: BlockFold, states: Block, at: Mapping[Node, Index], block: int, count: int
) -> list[Segment]:
    """The loops of a stream, in order."""
    for select, visible in hiding_selects(states):
        lines = _lines(frame, states, at, select, visible, block * count)
        if lines is not None:
            step = _Steps(frame, block, count)
            return _limits(step, lines, _alike(states, select, at, lines), visible)
    return [Segment()]


@dataclass
class _Lines:
    """Where the places that a tile of rows sees begin and end: for any row, and for all."""

    index: Index
    exact: bool
    lower: list[tuple[Dim, Dim]] = field(default_factory=list[tuple[Dim, Dim]])
    upper: list[tuple[Dim, Dim]] = field(default_factory=list[tuple[Dim, Dim]])


def _lines(
    frame: BlockFold,
    states: Block,
    at: Mapping[Node, Index],
    select: Node,
    visible: int,
    extent: int,
) -> _Lines | None:
    index = index_in_pass(states, at, select)
    if index is None:
        return None
    shown = seen(select.args[0], index, visible == 1)
    lines = _Lines(index, shown.exact)
    for bound in shown.bounds:
        found = _along(frame, bound)
        if found is None:
            lines.exact = False
            continue
        sign, any_row, all_rows = found
        if sign < 0:
            lines.upper.append((add(any_row, 1), add(all_rows, 1)))
        else:
            lines.lower.append((mul(any_row, -1), mul(all_rows, -1)))
    for limit in shown.limits:
        value = frame.value(limit.value, limit.at)
        extreme = frame.fold(value, "min" if limit.sign > 0 else "max", value.axes)
        data = frame.data_symbol(extreme if value.axes else value, extent + 1)
        place = add(mul(data, limit.scale), limit.moved)
        if limit.sign > 0:
            lines.lower.append((place, place))
        else:
            lines.upper.append((add(place, 1), add(place, 1)))
    return lines if lines.lower or lines.upper else None


def _alike(states: Block, select: Node, at: Mapping[Node, Index], lines: _Lines) -> list[Node]:
    """The selects that the condition of one decides too, at the same places."""
    alike = [n for n in states.nodes if choice(n) and n.args[0] is select.args[0]]
    return [n for n in alike if index_in_pass(states, at, n) == lines.index]


def _limits(step: _Steps, lines: _Lines, alike: Sequence[Node], visible: int) -> list[Segment]:
    count = step.count
    first = step.most([step.down(a) for a, _ in lines.lower], 0)
    end = step.least([step.up(a) for a, _ in lines.upper], count)
    if not lines.exact:
        return [Segment((first.node, end.node))]
    inner = step.least([step.most([step.up(b) for _, b in lines.lower], 0), end], count)
    inner = step.most([inner, first], 0)
    outer = step.least([step.down(b) for _, b in lines.upper], count)
    outer = step.most([step.least([outer, end], count), inner], 0)
    fixed = {n: n.args[visible] for n in alike}
    found_segments: list[Segment] = []
    if lines.lower:
        found_segments.append(Segment((first.node, inner.node)))
    found_segments.append(Segment((inner.node, outer.node), fixed))
    if lines.upper:
        found_segments.append(Segment((outer.node, end.node)))
    return found_segments


class _Steps:
    """Places on the streamed axis to steps of the loop, within 0 and the number of steps."""

    def __init__(self, frame: BlockFrame, block: int, count: int) -> None:
        self.frame, self.block, self.count = frame, block, count

    def _clamped(self, dim: Dim) -> NamedTile:
        zero = self.frame.apply("max", [self.frame.number(dim), self.frame.int(0)])
        most = self.frame.int(self.count * self.block)
        return self.frame.apply("min", [zero, most])

    def down(self, dim: Dim) -> NamedTile:
        return self.frame.apply("div", [self._clamped(dim), self.frame.int(self.block)])

    def up(self, dim: Dim) -> NamedTile:
        return self.frame.apply(
            "div", [self._clamped(add(dim, self.block - 1)), self.frame.int(self.block)]
        )

    def most(self, values: Sequence[NamedTile], start: int) -> NamedTile:
        return self._fold("max", values, start)

    def least(self, values: Sequence[NamedTile], start: int) -> NamedTile:
        return self._fold("min", values, start)

    def _fold(self, op: str, values: Sequence[NamedTile], start: int) -> NamedTile:
        if not values:
            return self.frame.int(start)
        total = values[0]
        for value in values[1:]:
            total = self.frame.apply(op, [total, value])
        return total


def index_in_pass(states: Block, at: Mapping[Node, Index], target: Node) -> Index | None:
    """Where a node is read in a step; None where that is not at one place."""
    found: set[Index] = set()
    for state in states.results:
        for operand, place in operands_of(state, at[state]):
            found |= _indices_of(operand, place, target)
    return found.pop() if len(found) == 1 else None


def _indices_of(root: Node, place: Index, target: Node) -> set[Index]:
    """Where the target is read, from where an operand of a state is."""
    pending: list[tuple[Node, Index]] = [(root, place)]
    seen: set[tuple[Node, Index]] = set()
    found: set[Index] = set()
    while pending:
        node, index = pending.pop()
        if node is target:
            found.add(index)
            continue
        if (node, index) in seen:
            continue
        seen.add((node, index))
        if is_elementwise(node):
            pending.extend((a, index if a.tensor.rank else ()) for a in node.args)
        elif ops.is_whole_view(node):
            pending.append((node.args[0], ops.pull(node, index)[0]))
    return found


def _along(frame: BlockFrame, bound: Dim) -> tuple[int, Dim, Dim] | None:
    """`sign * k + rest >= 0`: the sign, and the largest and smallest rest of a tile's rows."""
    if not isinstance(bound, Expr):
        return None
    sign = 0
    for monomial, coefficient in bound.terms:
        held = {s.name for a in monomial for s in ([a] if isinstance(a, Symbol) else [])}
        if len(held) != len(monomial) or len(held) > 1:
            return None  # no line
        if "streamed" in held:
            if abs(coefficient) != 1:
                return None
            sign = coefficient
    if not sign:
        return None
    rest = substitute(bound, {"streamed": 0})
    ends = corners(frame, rest)
    return None if ends is None else (sign, ends[1], ends[0])


def corners(frame: BlockFrame, line: Dim) -> tuple[Dim, Dim] | None:
    """The least and greatest value on a tile; None where it is no line."""
    least: dict[str, Dim] = {}
    most: dict[str, Dim] = {}
    for s in sorted(symbols(line), key=str):
        axis = frame.axes.get(s.name)
        if axis is None or not axis.is_tile:
            continue
        step = slope(line, s.name)
        if not isinstance(step, int) or s in symbols(add(line, mul(axis.place, -step))):
            return None
        first, last = _ends(frame, axis)
        least[s.name], most[s.name] = (first, last) if step > 0 else (last, first)
    return substitute(line, least), substitute(line, most)


def _ends(frame: BlockFrame, axis: Axis) -> tuple[Dim, Dim]:
    """First and last place of a tile."""
    start = frame.data_symbol(NamedTile(axis.start), axis.extent)
    return start, add(start, axis.block - 1)
