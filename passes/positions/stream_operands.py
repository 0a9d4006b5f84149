"""The index at which a state of a stream reads its operands."""

from __future__ import annotations

from collections.abc import Iterator

from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, symbol
from stack.ir.node import Node
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import is_reduction
from stack.passes.tiling.frame import static


def operand_place(state: Node, place: Index, key: Dim, side: int = 0) -> Index:
    """Returns the index of an operand of a state.

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
    """Yields operands of a state with their index; the streamed axis is the symbol `streamed`."""
    for side, (operand, position) in enumerate(streamed_axes(state)):
        key = symbol("streamed", 0, max(static(operand.shape[position]) - 1, 0))
        yield operand, operand_place(state, place, key, side)
