"""Visibility in streams: selects that hide elements from states, and limits that data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from stack.ir import ops
from stack.ir.algebra import COMBINE, ELEMENTWISE
from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.dim import Dim, Expr, Quotient, symbols
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.space import NumpySpace
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import choice, is_input, is_number, shows
from stack.ir.types import TensorType
from stack.passes.positions.affine import affine
from stack.rewrite.splat import splat


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


def is_data_limit(node: Node, index: Index) -> bool:
    """True if a comparison with data limits the streamed position, or the number of its block. The
    data must not depend on that position.
    """
    place, value = node.args
    if not _is_position(affine(place, index), _streamed_place(index)) or not value.tensor.rank:
        return False
    at = index
    while ops.is_view(value):
        at = ops.pull(value, at)[0]
        value = value.args[0]
    return is_input(value) and not any(s.name == "streamed" for d in at for s in symbols(d))


def _is_position(number: Dim | None, place: Dim | None) -> bool:
    """True if `number` is the position `place`, or that of its block: `place // n`."""
    if number is None or place is None or number == place:
        return number is not None and number == place
    if isinstance(number, Expr) and len(number.terms) == 1 and number.terms[0][1] == 1:
        atoms = number.terms[0][0]
        if len(atoms) == 1 and isinstance(atoms[0], Quotient) and atoms[0].kind == "//":
            quotient = atoms[0]
            return quotient.num == place and isinstance(quotient.den, int)
    return False


def _streamed_place(index: Index) -> Dim | None:
    """Returns the expression in an index that contains the streamed position; None if none does."""
    return next((d for d in index if any(s.name == "streamed" for s in symbols(d))), None)
