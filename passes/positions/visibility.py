"""Visibility in streams: selects that hide elements from states, and limits that data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from stack.ir import ops
from stack.ir.algebra import COMBINE, ELEMENTWISE
from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.dim import Dim, Expr, Quotient, symbols
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.space import NumpySpace
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import choice, is_input, splat
from stack.ir.types import TensorType
from stack.passes.positions.index_maps import affine


def hiding_selects(states: Block) -> Iterator[tuple[Node, int]]:
    """Yields the select nodes that hide elements from all states of a stream, as attention masks
    do, with the number of the operand that visible elements get.
    """

    def is_nothing(state: Node, known: Mapping[Node, float]) -> bool:
        nothing = ELEMENTWISE[COMBINE[state.attrs.get("kind", "sum")]].neutral[0]
        return any(known.get(operand) == nothing for operand, _ in streamed_axes(state))

    def hides(select: Node, fill: float) -> bool:
        known = {select: fill}
        follow(states, known, known_value)
        return bool(select.tensor.rank) and all(is_nothing(s, known) for s in states.results)

    return fills_that_hide(states.nodes, hides)


def fills_that_hide(
    nodes: Iterable[Node], hides: Callable[[Node, float], bool]
) -> Iterator[tuple[Node, int]]:
    """Yields those select nodes of floats that give hidden elements -inf or 0, with the number of
    the operand that visible elements get: 1 or 2. `hides` tells whether elements with this value
    count as nothing.
    """
    for node in nodes:
        chosen = choice(node)
        for shown, fill in ((2, chosen.yes), (1, chosen.no)) if chosen is not None else ():
            value = splat(fill) if node.dtype.is_float else None
            if value in (0.0, -math.inf) and hides(node, value):
                yield node, shown


def follow(
    block: Block,
    known: dict[Node, float],
    value_of: Callable[[Node, Mapping[Node, float]], float | None],
) -> None:
    """Adds to `known` the nodes of a block, and of the loops in it, whose value at an element
    `value_of` finds from those in `known`.
    """
    for node in block.nodes:
        for inner in node.blocks:
            follow(inner, known, value_of)
        if node not in known and (node.blocks or not known.keys().isdisjoint(node.args)):
            value = value_of(node, known)
            if value is not None:
                known[node] = value


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
    streamed = next((d for d in index if any(s.name == "streamed" for s in symbols(d))), None)
    if not _is_position(affine(place, index), streamed) or not value.tensor.rank:
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
