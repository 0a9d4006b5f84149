"""Visibility in streams: selects that hide elements from states, and limits from conditions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stack.ir import ops
from stack.ir.algebra import COMBINE, ELEMENTWISE, Algebra
from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.dim import Dim, Expr, Quotient, add, mul, symbols
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.space import NumpySpace
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import choice, connective, is_input, is_number, negates, shows
from stack.ir.types import TensorType
from stack.passes.positions.affine import affine
from stack.rewrite.splat import splat


@dataclass(frozen=True)
class DataLimit:
    """A limit on the position along the streamed axis that comes from data, such as the sequence
    lengths in a mask.

    With sign +1: position >= scale * value[at] + moved. With sign -1: position <= the same.

    Attributes:
        sign: +1 for a lower limit, -1 for an upper one.
        value: an input of the block, such as the lengths of sequences.
        at: the index at which `value` is read.
        scale: positions per unit of the value, for a value that counts blocks.
        moved: offset in positions.
    """

    sign: int
    value: Node
    at: Index
    scale: int = 1
    moved: int = 0


@dataclass(frozen=True)
class VisibleRegion:
    """The positions at which the elements of a stream are visible: not hidden by a mask.

    Attributes:
        bounds: affine expressions of positions, all of which are >= 0 there.
        exact: True if there is no condition besides `bounds`.
        limits: limits of the streamed position by data.
    """

    bounds: tuple[Dim, ...] = ()
    exact: bool = True
    limits: tuple[DataLimit, ...] = ()


def hiding_selects(states: Block) -> Iterator[tuple[Node, int]]:
    """Yields the select nodes that hide elements from all states of a stream, as attention masks
    do, with the number of the operand that visible elements get.
    """
    for select in states.nodes:
        visible = _visible_branch(select)
        if visible is not None and hidden(states, select, _fill(select, visible)) is not None:
            yield select, visible


def _visible_branch(node: Node) -> int | None:
    """Returns the visible operand of a select whose other operand is -inf or 0; else None."""
    if choice(node) is None or not node.tensor.rank:
        return None
    for side in (1, 2):
        fill = _behind(node.args[side])
        if is_number(fill):
            value = fill.attrs["value"].array
            if value.dtype.kind == "f" and (np.isneginf(value) or value == 0):
                return 3 - side
    return None


def _fill(node: Node, visible: int) -> float:
    return float(_behind(node.args[3 - visible]).attrs["value"].array)


def _behind(node: Node) -> Node:
    """Skips broadcasts and casts: returns the node whose elements they repeat or convert."""
    while shows(node):
        node = node.args[0]
    return node


def hidden(states: Block, start: Node, fill: float) -> frozenset[Node] | None:
    """Returns the nodes that are 0 or -inf at an element for which node `start` is `fill`, itself 0
    or -inf. None if the element is not hidden: some state would combine with another value than the
    identity of its reduction."""
    known = {start: fill}
    for node in states.nodes:
        if node not in known and not known.keys().isdisjoint(node.args):
            value = known_value(node, known)
            if value in (0.0, -math.inf):
                known[node] = value
    for state in states.results:
        nothing = ELEMENTWISE[COMBINE[state.attrs.get("kind", "sum")]].neutral[0]
        if all(known.get(operand) != nothing for operand, _ in streamed_axes(state)):
            return None
    return frozenset(known)


def known_value(node: Node, known: Mapping[Node, float]) -> float | None:
    """Returns the value of a float node if constants and the values in `known` determine it,
    whatever finite numbers the other operands are. None if they do not."""
    op = ops.lookup(node.op)
    if not isinstance(node.type, TensorType) or not node.dtype.is_float:
        return None
    parts = [known[a] if a in known else splat(a) for a in node.args]
    if ops.is_whole_view(node) or (choice(node) and parts[1] == parts[2]):
        return parts[-1]
    if op.kind != "elementwise":
        return None
    if all(part is not None for part in parts):
        numbers = [constant(p, a.dtype) for p, a in zip(parts, node.args, strict=True)]
        scalar = Node(node.op, numbers, node.attrs, node.tensor.with_shape(()))
        return float(evaluate(Block((), (scalar,)), (), NumpySpace())[0])
    absorbed = (v for i, v in ops.algebra_of(node).absorbing.items() if parts[i] == v)
    return next(absorbed, None)


def seen(node: Node, index: Index, positive: bool) -> VisibleRegion:
    """Returns the positions at which a condition is true (or, if not `positive`, false), as a
    region.
    """
    if ops.is_whole_view(node):
        return seen(node.args[0], ops.pull(node, index)[0], positive)
    if negates(node):
        return seen(node.args[0], index, not positive)
    chosen = choice(node)
    if chosen is not None:
        values = [_truth(chosen.yes), _truth(chosen.no)]
        if values in ([True, False], [False, True]):
            return seen(chosen.test, index, positive == values[0])
    if connective(node) == (1 if positive else -1):
        left, right = (seen(a, index, positive) for a in node.args)
        limits = (*left.limits, *right.limits)
        return VisibleRegion((*left.bounds, *right.bounds), left.exact and right.exact, limits)
    if ops.algebra_of(node).is_order:
        found = compared(node, index, positive)
        if found is not None:
            difference, is_strict = found
            return VisibleRegion((add(difference, -1) if is_strict else difference,))
        limit = data_limit(node, index, positive)
        return VisibleRegion((), False, (limit,) if limit else ())
    return VisibleRegion((), False)


def compared(node: Node, index: Index, positive: bool) -> tuple[Dim, bool] | None:
    """Returns a comparison of positions as an expression that is above 0 (second item True), or not
    below 0 (False), where the comparison is true, or false if not `positive`.

    None if an operand is not affine in positions.
    """
    a, b = (affine(x, index if x.tensor.rank else ()) for x in node.args)
    if a is None or b is None:
        return None
    order = _order(node, positive)
    low, high = (a, b) if order.monotone[1] > 0 else (b, a)
    return add(high, mul(low, -1)), not order.reflexive


def _order(node: Node, positive: bool) -> Algebra:
    """Returns the algebraic properties of a comparison, or of its negation if not `positive`."""
    facts = ops.algebra_of(node)
    return facts if positive else ELEMENTWISE[facts.negated]


def data_limit(node: Node, index: Index, positive: bool) -> DataLimit | None:
    """Returns the limit that a comparison with data sets to the streamed position, or to the number
    of its block. The data must not depend on that position. None for other comparisons."""
    place, value = node.args
    scale = _blocks(affine(place, index), _streamed_place(index))
    if not scale or not value.tensor.rank:
        return None
    at = index
    while ops.is_view(value):
        at = ops.pull(value, at)[0]
        value = value.args[0]
    if not is_input(value) or any(s.name == "streamed" for d in at for s in symbols(d)):
        return None
    order = _order(node, positive)
    sign = order.monotone[0]
    last = 0 if order.reflexive else sign  # offset of the last number that satisfies the comparison
    moved = last * scale if sign > 0 else scale - 1 + last * scale
    return DataLimit(sign, value, at, scale, moved)


def _blocks(number: Dim | None, place: Dim | None) -> int:
    """Returns how many consecutive positions `place` have the same `number`: 1 if it is the
    position itself, n if it is position // n, 0 for other expressions.
    """
    if number is None or place is None:
        return 0
    if number == place:
        return 1
    if isinstance(number, Expr) and len(number.terms) == 1 and number.terms[0][1] == 1:
        atoms = number.terms[0][0]
        if len(atoms) == 1 and isinstance(atoms[0], Quotient) and atoms[0].kind == "//":
            quotient = atoms[0]
            if quotient.num == place and isinstance(quotient.den, int):
                return quotient.den
    return 0


def _streamed_place(index: Index) -> Dim | None:
    """Returns the expression in an index that contains the streamed position; None if none does."""
    return next((d for d in index if any(s.name == "streamed" for s in symbols(d))), None)


def _truth(node: Node) -> bool | None:
    value = splat(node)
    return value if isinstance(value, bool) else None
