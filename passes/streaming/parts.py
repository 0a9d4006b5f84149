"""Streams in parts: one loop for each part of the axis, if one loop would leave a GPU idle.

The states of two parts merge as those of two tiles do. The block `correct` converts the states of a
part to the final values of earlier states, and a reduction over the parts adds them. For a matmul
over a long axis of few rows this is known as split-K or split-KV; this code is generic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir.axes import Axis, Rule
from stack.ir.builder import Builder, make, new_params
from stack.ir.dim import Dim
from stack.ir.node import Block, Node, topological
from stack.ir.ops import is_whole_view, restated, rule_of
from stack.ir.traits import fold_of, is_alias, is_elementwise
from stack.rewrite.engine import inline_block

PARTS = Axis(("parts",))


def in_parts(stream: Node, part: int) -> Node:
    """Returns a stream on parts of `part` elements, followed by one group that merges them."""
    states, correct, finish = stream.blocks
    count = len(states.results)
    ends = Block(finish.params, finish.params[:count], finish.names, finish.locs)
    attrs = {k: v for k, v in stream.attrs.items() if k != "schedule"}
    split = make("stream", stream.args, {**attrs, "part": part}, (states, correct, ends))
    found = [make("item", (split,), {"index": i}) for i in range(count)] if count > 1 else [split]
    held = new_params("s", [f.type for f in found], finish.params[count:])
    merged: list[Node] = []
    for j, state in enumerate(states.results):
        # `correct` of a state reads only earlier states: later ones are not merged yet
        new = [_repeated(m, h.shape[0]) for m, h in zip(merged, held)] + held[len(merged) :]
        kept = with_parts(correct.results[j], dict(zip(correct.params, [*held, *new], strict=True)))
        merged.append(make("reduce", (kept,), {"kind": fold_of(state), "axes": (0,)}))
    builder = Builder()
    results = inline_block(finish, [*merged, *finish.params[count:]], builder)
    needed = set(topological(results))
    read = [p for p in finish.params[count:] if p in needed]
    body = Block([*held, *read], results, builder.names, builder.locs)
    args = [*found, *(stream.args[finish.params.index(p) - count] for p in read)]
    return make("fusion", args, {"kind": "reduction", "name": "merge"}, (body,))


def with_parts(root: Node, known: Mapping[Node, Node]) -> Node:
    """Rebuilds elementwise ops and views for all parts of a stream at once: values get a first axis
    of parts. `known`: values that have it already."""
    done = dict(known)
    for node in topological([root], lambda n: n not in done):
        done[node] = _batched(node, [done[a] for a in node.args])
    return done[root]


def _batched(node: Node, args: Sequence[Node]) -> Node:
    if all(new is old for new, old in zip(args, node.args, strict=True)):
        return node  # constant over the parts
    parts = next(n.shape[0] for n, o in zip(args, node.args, strict=True) if n is not o)
    type_ = node.tensor.with_shape((parts, *node.shape))
    if is_alias(node):
        return make(node.op, args, node.attrs, hint=type_)
    if not (is_elementwise(node) or is_whole_view(node)):
        raise ValueError(f"no parts of {node.op}")
    whole = [
        _repeated(new, parts) if new is old and old.tensor.rank else new
        for new, old in zip(args, node.args, strict=True)
    ]
    rule = rule_of(node)
    assert rule is not None, "as of all such ops"
    inputs = tuple(
        o if new is old else (PARTS, *o)
        for o, new, old in zip(rule.inputs, whole, node.args, strict=True)
    )
    attrs = restated(node, Rule(inputs, ((PARTS, *rule.outputs[0]),)))
    return make(node.op, whole, attrs, hint=type_)


def _repeated(value: Node, parts: Dim) -> Node:
    """Broadcasts a value along a new first axis of `parts` elements."""
    axes = tuple(range(1, value.tensor.rank + 1))
    hint = value.tensor.with_shape((parts, *value.shape))
    return make("broadcast", (value,), {"axes": axes}, hint=hint)
