"""The index at which a state of a stream reads its operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, bounds, symbol
from stack.ir.node import Block, Node
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import is_elementwise, is_reduction
from stack.passes.tiling.frame import static


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
    found: set[Index] = set()
    for state in states.results:
        for operand, place in operands_of(state, at[state]):
            indices = _indices_of(operand, place, target)
            found |= {tuple(0 if bounds(d) == (0, 0) else d for d in index) for index in indices}
    return found.pop() if len(found) == 1 else None


def _indices_of(root: Node, place: Index, target: Node) -> set[Index]:
    """Returns all indices at which node `target` is read to compute the element of `root`, an
    operand of a state, at index `place`.
    """
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
