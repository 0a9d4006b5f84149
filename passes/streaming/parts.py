"""Streams in parts: one loop for each part of the axis, if one loop would leave a GPU idle.

The states of two parts merge as those of two tiles do. The block `correct` converts the states of a
part to the final values of earlier states, and a reduction over the parts adds them. For a matmul
over a long axis of few rows this is known as split-K or split-KV; this code is generic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stack.ir.algebra import COMBINE
from stack.ir.axes import Axis, Rule
from stack.ir.builder import Builder, make, new_params
from stack.ir.dim import Dim
from stack.ir.node import Block, Node, topological
from stack.ir.ops import is_whole_view, restated, rule_of
from stack.ir.traits import fold_of, is_alias, is_elementwise
from stack.rewrite.engine import inline_block

PARTS = Axis(("parts",))
View = Callable[[Node, Node], Node]


def in_parts(stream: Node, part: int) -> Node:
    """Returns a stream on parts of `part` elements, followed by one group that merges them."""
    return merged(stream, states_of_parts(stream, part), lambda _, found: found)


def states_of_parts(stream: Node, part: int) -> list[Node]:
    """Returns the states of each part of `part` elements; their first axis runs over the parts."""
    states, correct, finish = stream.blocks
    count = len(states.results)
    ends = Block(finish.params, finish.params[:count], finish.names, finish.locs)
    attrs = {k: v for k, v in stream.attrs.items() if k != "schedule"}
    split = make("stream", stream.args, {**attrs, "part": part}, (states, correct, ends))
    return [make("item", (split,), {"index": i}) for i in range(count)] if count > 1 else [split]


def merged(stream: Node, found: Sequence[Node], view: View, rest: Node | None = None) -> Node:
    """Returns a group that merges the states of parts, and computes the results of a stream.

    Args:
        stream: the stream.
        found: the states of the parts, each as one array.
        view: given a state and its array, returns it for each part, with a first axis of parts.
        rest: a stream of one more short part, if there is one: the group computes its states.
    """
    states, correct, finish = stream.blocks
    count = len(states.results)
    given = new_params("s", [f.type for f in found], finish.params[count:])
    held = list(map(view, states.results, given))
    builder = Builder()
    args = list(rest.args) if rest is not None else []
    short = new_params("t", [a.type for a in args], [*given, *finish.params[count:]])
    more = inline_block(rest.blocks[0], short, builder) if rest is not None else []
    made: list[Node] = []
    for j, state in enumerate(states.results):
        # `correct` of a state reads only earlier states: later ones are not merged yet
        new = [_repeated(m, h.shape[0]) for m, h in zip(made, held)] + held[len(made) :]
        kept = with_parts(correct.results[j], dict(zip(correct.params, [*held, *new], strict=True)))
        total = make("reduce", (kept,), {"kind": fold_of(state), "axes": (0,)})
        if more:
            one = Block(correct.params, (correct.results[j],))
            (kept,) = inline_block(one, [*more, *made, *more[len(made) :]], builder)
            total = make(COMBINE[fold_of(state)], (total, kept))
        made.append(total)
    results = inline_block(finish, [*made, *finish.params[count:]], builder)
    needed = set(topological(results))
    read = [p for p in finish.params[count:] if p in needed]
    body = Block([*given, *short, *read], results, builder.names, builder.locs)
    args = [*found, *args, *(stream.args[finish.params.index(p) - count] for p in read)]
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
