"""Move a transpose of a stream's result into the stream, so that it writes the final layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir import ops
from stack.ir.builder import make
from stack.ir.control_ops import result_type
from stack.ir.node import Block, Node
from stack.ir.traits import axis_order, is_alias, is_item, is_stream, items_of, place_of
from stack.passes.streaming.graph import Graph
from stack.rewrite.engine import replace

# a result, the transpose that is its only reader, and the order of the result's axes
Transposed = tuple[Node, Node, tuple[int, ...]]


def write_transposed(block: Block) -> Block:
    """Returns the block with streams that transpose their results before writing them."""
    graph = Graph(block)
    changed: dict[Node, Node] = {}
    for stream in block.nodes:
        if not is_stream(stream):
            continue
        outs = items_of(stream, graph.users.get(stream, ())) or [stream]
        transposes = {out: found for out in outs if (found := _transpose(graph, out)) is not None}
        if transposes:
            changed.update(_transposed(stream, outs, transposes))
    return replace(block, changed)


def _transpose(graph: Graph, out: Node) -> Transposed | None:
    """Returns the only reader of a result if it is a transpose, perhaps of merged axes."""
    groups: list[tuple[int, ...]] = [(i,) for i in range(out.tensor.rank)]
    node = out
    while True:
        users = graph.users.get(node, [])
        if len(users) != 1 or node in graph.results:
            return None
        (user,) = users
        perm = axis_order(user)
        if perm is not None:
            order = tuple(i for p in perm for i in groups[p])
            return out, user, order
        if not is_alias(user) or node is not out:
            return None
        merged = _merged(user)
        if merged is None:
            return None
        groups, node = merged, user


def _merged(reshape: Node) -> list[tuple[int, ...]] | None:
    """Returns for each axis of a reshape the operand axes that it merges; None if it splits one."""
    rule = ops.rule_of(reshape)
    if rule is None or any(len(axis.names) != 1 or axis.mark for axis in rule.inputs[0]):
        return None
    place = {axis.names[0]: i for i, axis in enumerate(rule.inputs[0])}
    found = [tuple(place[n] for n in axis.names) for axis in rule.outputs[0]]
    return found if sorted(i for g in found for i in g) == list(range(len(place))) else None


def _transposed(
    stream: Node, outs: Sequence[Node], transposes: Mapping[Node, Transposed]
) -> dict[Node, Node]:
    states, correct, finish = stream.blocks
    results = list(finish.results)
    for out, _, order in transposes.values():
        place = place_of(out)
        results[place] = make("transpose", (results[place],), {"perm": order})
    ending = Block(finish.params, results, finish.names, finish.locs)
    type_ = result_type(ending.type)
    new = Node("stream", stream.args, stream.attrs, type_, (states, correct, ending))
    changed: dict[Node, Node] = {}
    for out in outs:
        made = make("item", (new,), dict(out.attrs)) if is_item(out) else new
        if out not in transposes:
            changed[out] = made
            continue
        _, reader, _ = transposes[out]
        shaped = made
        if made.shape != reader.shape:
            shaped = make("reshape", (made,), hint=reader.tensor)
        changed[reader] = shaped
    return changed
