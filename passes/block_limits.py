"""Which steps of a stream a comparison of positions leaves, and where it holds throughout.

A condition that is affine in the positions, such as i >= j, hides whole tiles on one side of a
line. Where all that the states make of a hidden element is the identity of their reductions, those
tiles are left out, and between them and the line no element needs the comparison. (What is hidden
counts as nothing: an infinity there does not become a nan.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, Expr, Symbol, add, mul, substitute, symbol, symbols
from stack.ir.node import Block, Node
from stack.ir.stream_op import streamed_axes
from stack.passes.affine import affine
from stack.passes.block_frame import Axis, BlockFrame, Held
from stack.passes.block_reduce import BlockReduce


@dataclass(frozen=True)
class Segment:
    """A run of steps.

    Attributes:
        limits: the first step and the one past the last; None for all of them.
        fixed: selects whose condition is known there, with the operand that they give.
    """

    limits: tuple[Node, Node] | None = None
    fixed: Mapping[Node, Node] = field(default_factory=dict[Node, Node])


@dataclass(frozen=True)
class Seen:
    """Where elements are visible: all of `bounds` are >= 0; `exact` when nothing else matters.

    `limits` are bounds by data: the streamed place is not below (+1) or not above (-1) the value
    of a node at an index, moved by a number.
    """

    bounds: tuple[Dim, ...] = ()
    exact: bool = True
    limits: tuple[tuple[int, Node, Index, int], ...] = ()


def segments(
    frame: BlockReduce, states: Block, at: Mapping[Node, Index], block: int, count: int
) -> list[Segment]:
    """The loops of a stream, in order."""
    for select, visible in hiding_selects(states):
        found = _limits(frame, states, at, select, visible, block, count)
        if found:
            return found
    return [Segment()]


def hiding_selects(states: Block) -> Iterator[tuple[Node, int]]:
    """Selects that hide elements from all states, and the operand that is seen."""
    for select in states.nodes:
        visible = _visible_branch(select)
        if visible is not None and hidden(states, select, _fill(select, visible)) is not None:
            yield select, visible


def _visible_branch(node: Node) -> int | None:
    """The operand of a select that is seen, where the other is -inf or 0."""
    if node.op != "select" or not node.tensor.rank:
        return None
    for side in (1, 2):
        fill = node.args[side]
        while fill.op in ("broadcast", "cast"):
            fill = fill.args[0]
        if fill.op == "const" and not fill.tensor.rank:
            value = fill.attrs["value"].array
            if value.dtype.kind == "f" and (np.isneginf(value) or value == 0):
                return 3 - side
    return None


def _fill(node: Node, visible: int) -> float:
    fill = node.args[3 - visible]
    while fill.op in ("broadcast", "cast"):
        fill = fill.args[0]
    return float(fill.attrs["value"].array)


def hidden(states: Block, start: Node, fill: float) -> frozenset[Node] | None:
    """What is -inf or 0 where a node is `fill`, one of the two.

    None where a state has more of such an element than the identity of its reduction.
    """
    lowest: set[Node] = set()
    zero: set[Node] = set()
    (lowest if fill else zero).add(start)
    for node in states.nodes:
        args = node.args
        if node.op in ("broadcast", "cast", "reshape", "transpose") and args[0] in lowest | zero:
            (lowest if args[0] in lowest else zero).add(node)
        elif (
            (node.op in ("add", "sub") and args[0] in lowest)
            or (node.op == "add" and args[1] in lowest)
            or (node.op in ("mul", "div") and args[0] in lowest and _is_positive(args[1]))
        ):
            lowest.add(node)
        elif (
            (node.op in ("exp", "exp2") and args[0] in lowest)
            or (node.op == "mul" and not zero.isdisjoint(args))
            or (node.op == "div" and args[0] in zero)
            or (node.op in ("add", "sub") and all(a in zero for a in args))
            or (node.op == "select" and all(a in zero or _is_zero(a) for a in args[1:]))
        ):
            zero.add(node)
    for state in states.results:
        operands = [operand for operand, _ in streamed_axes(state)]
        if state.op == "dot" or state.attrs["kind"] == "sum":
            if zero.isdisjoint(operands):
                return None
        elif state.attrs["kind"] != "max" or lowest.isdisjoint(operands):
            return None
    return frozenset(lowest | zero)


def _is_zero(node: Node) -> bool:
    return node.op == "const" and not node.tensor.rank and not node.attrs["value"].array


def _is_positive(node: Node) -> bool:
    return node.op == "const" and not node.tensor.rank and float(node.attrs["value"].array) > 0


def _limits(
    frame: BlockReduce,
    states: Block,
    at: Mapping[Node, Index],
    select: Node,
    visible: int,
    block: int,
    count: int,
) -> list[Segment]:
    index = index_in_pass(states, at, select)
    if index is None:
        return []
    seen = _seen(select.args[0], index, visible == 1)
    lower: list[tuple[Dim, Dim]] = []  # first seen place for any row, for all rows
    upper: list[tuple[Dim, Dim]] = []  # past the last
    exact = seen.exact
    for bound in seen.bounds:
        found = _along(frame, bound)
        if found is None:
            exact = False
            continue
        sign, any_row, all_rows = found
        if sign < 0:
            upper.append((add(any_row, 1), add(all_rows, 1)))
        else:
            lower.append((mul(any_row, -1), mul(all_rows, -1)))
    for sign, node, place, moved in seen.limits:
        value = frame.value(node, place)
        kind = "min" if sign > 0 else "max"
        extreme = frame.fold(value, kind, value.axes) if value.axes else value
        limit = add(frame.data_symbol(extreme, count * block + 1), moved)
        if sign > 0:
            lower.append((limit, limit))
        else:
            upper.append((add(limit, 1), add(limit, 1)))
    if not lower and not upper:
        return []
    step = _Steps(frame, block, count)
    first = step.most([step.down(a) for a, _ in lower], 0)
    end = step.least([step.up(a) for a, _ in upper], count)
    if not exact:
        return [Segment((first.node, end.node))]
    inner = step.least([step.most([step.up(b) for _, b in lower], 0), end], count)
    inner = step.most([inner, first], 0)
    outer = step.least([step.down(b) for _, b in upper], count)
    outer = step.most([step.least([outer, end], count), inner], 0)
    alike = [n for n in states.nodes if n.op == "select" and n.args[0] is select.args[0]]
    fixed = {n: n.args[visible] for n in alike if index_in_pass(states, at, n) == index}
    found_segments: list[Segment] = []
    if lower:
        found_segments.append(Segment((first.node, inner.node)))
    found_segments.append(Segment((inner.node, outer.node), fixed))
    if upper:
        found_segments.append(Segment((outer.node, end.node)))
    return found_segments


class _Steps:
    """Places on the streamed axis to steps of the loop, within 0 and the number of steps."""

    def __init__(self, frame: BlockFrame, block: int, count: int) -> None:
        self.frame, self.block, self.count = frame, block, count

    def _clamped(self, dim: Dim) -> Held:
        zero = self.frame.apply("max", [self.frame.number(dim), self.frame.int(0)])
        most = self.frame.int(self.count * self.block)
        return self.frame.apply("min", [zero, most])

    def down(self, dim: Dim) -> Held:
        return self.frame.apply("div", [self._clamped(dim), self.frame.int(self.block)])

    def up(self, dim: Dim) -> Held:
        return self.frame.apply(
            "div", [self._clamped(add(dim, self.block - 1)), self.frame.int(self.block)]
        )

    def most(self, values: Sequence[Held], start: int) -> Held:
        return self._fold("max", values, start)

    def least(self, values: Sequence[Held], start: int) -> Held:
        return self._fold("min", values, start)

    def _fold(self, op: str, values: Sequence[Held], start: int) -> Held:
        if not values:
            return self.frame.int(start)
        total = values[0]
        for value in values[1:]:
            total = self.frame.apply(op, [total, value])
        return total


def operand_place(state: Node, place: Index, operand: Node, position: int) -> Index:
    """Where a state's operand is read; the streamed axis is the symbol `streamed`."""
    k = symbol("streamed", 0, max(int(operand.shape[position]) - 1, 0))  # pyright: ignore
    if state.op == "reduce":
        return (*place[:position], k, *place[position:])
    rule = parse_rule(state.attrs["rule"])
    found = {a.names[0]: d for a, d in zip(rule.outputs[0], place, strict=True)}
    found[rule.reduced[0]] = k
    side = state.args.index(operand)
    return tuple(found[a.names[0]] for a in rule.inputs[side])


def index_in_pass(states: Block, at: Mapping[Node, Index], target: Node) -> Index | None:
    """Where a node is read in a step; None where that is not at one place."""
    found: set[Index] = set()
    for state in states.results:
        for operand, position in streamed_axes(state):
            place = operand_place(state, at[state], operand, position)
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
        if (node, index) in seen or node.op in ("param", "const", "iota", "reduce", "dot"):
            continue
        seen.add((node, index))
        kind = ops.lookup(node.op).kind
        if kind == "elementwise":
            pending.extend((a, index if a.tensor.rank else ()) for a in node.args)
        elif kind == "movement" and node.op in ("broadcast", "reshape", "transpose"):
            pending.append((node.args[0], ops.pull(node, index)[0]))
    return found


def _seen(node: Node, index: Index, positive: bool) -> Seen:
    """Where a condition holds (or, not `positive`, where it does not)."""
    if node.op in ("broadcast", "reshape", "transpose"):
        return _seen(node.args[0], ops.pull(node, index)[0], positive)
    if node.op == "not":
        return _seen(node.args[0], index, not positive)
    if node.op == "select":
        values = [_truth(a) for a in node.args[1:]]
        if values in ([True, False], [False, True]):
            return _seen(node.args[0], index, positive == values[0])
    if (node.op in ("and", "mul") and positive) or (node.op in ("or", "add") and not positive):
        left, right = (_seen(a, index, positive) for a in node.args)
        limits = (*left.limits, *right.limits)
        return Seen((*left.bounds, *right.bounds), left.exact and right.exact, limits)
    if node.op in ("lt", "le", "gt", "ge"):
        a, b = (affine(x, index if x.tensor.rank else ()) for x in node.args)
        if a is not None and b is not None:
            op = node.op if positive else {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}[node.op]
            difference = add(b, mul(a, -1)) if op in ("lt", "le") else add(a, mul(b, -1))
            return Seen((add(difference, -1) if op in ("lt", "gt") else difference,))
        limit = data_limit(node, index, positive)
        return Seen((), False, (limit,) if limit else ())
    return Seen((), False)


def data_limit(node: Node, index: Index, positive: bool) -> tuple[int, Node, Index, int] | None:
    """A streamed place against a value of the row: see `Seen.limits`."""
    op = node.op if positive else {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}[node.op]
    place, value = node.args
    if affine(place, index) != _streamed_place(index) or not value.tensor.rank:
        return None
    at = index
    while value.op in ("broadcast", "reshape", "transpose"):
        at = ops.pull(value, at)[0]
        value = value.args[0]
    if value.op != "param" or any(s.name == "streamed" for d in at for s in symbols(d)):
        return None
    return {"ge": (1, value, at, 0), "gt": (1, value, at, 1), "le": (-1, value, at, 0)}.get(
        op, (-1, value, at, -1)
    )


def _streamed_place(index: Index) -> Dim | None:
    """The streamed place in an index."""
    return next((d for d in index if any(s.name == "streamed" for s in symbols(d))), None)


def _truth(node: Node) -> bool | None:
    while node.op == "broadcast":
        node = node.args[0]
    if node.op != "const" or node.tensor.rank or node.dtype.kind != "b":
        return None
    return bool(node.attrs["value"].array)


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
    least: dict[str, Dim] = {}
    most: dict[str, Dim] = {}
    for s in symbols(rest):
        axis = frame.axes.get(s.name)
        if axis is None or not axis.is_tile:
            continue
        slope = add(substitute(rest, {s.name: 1}), mul(substitute(rest, {s.name: 0}), -1))
        if not isinstance(slope, int):
            return None
        first, last = _ends(frame, axis)
        least[s.name], most[s.name] = (first, last) if slope > 0 else (last, first)
    return sign, substitute(rest, most), substitute(rest, least)


def _ends(frame: BlockFrame, axis: Axis) -> tuple[Dim, Dim]:
    """First and last place of a tile."""
    start = frame.data_symbol(Held(axis.start), axis.extent)
    return start, add(start, axis.block - 1)
