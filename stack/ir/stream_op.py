"""`stream`: several dependent reductions over one axis, computed in a single pass.

    %a, %l, ... = stream(args) {states} {correct} {finish}

Block `states` takes the arguments and returns reductions over one axis k, where later ones depend
on earlier ones: m = max(s), l = sum(exp(s - m)). Evaluated as written, it takes one pass over k for
each. Block `correct` takes the states before and after some elements were added. It returns the old
states as if they had been computed with the new values of the states that they depend on: l *
exp(m_old - m_new). So a running pass over tiles of k computes, for each state in order,

    new = R(corrected old, R over the tile of what `states` computes from the tile and the new ones)

starting from the identity of R, as online softmax does. Two partial results merge in the same way.
Block `finish` takes the states and then the arguments, and returns the results of the node.

With `part`, the axis is split into parts of that many elements, and each result has an additional
first axis over the parts. Every part has its own states, and `finish` runs on each. The consumer
merges the parts with `correct`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stack.errors import RuleError
from stack.ir.control_ops import result_type
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.ops import OpDef, Site, define, rule_of
from stack.ir.traits import fold_of
from stack.ir.types import TensorType, TupleType, Type


def streamed_axes(state: Node) -> tuple[tuple[Node, int], ...]:
    """Returns the operands of a reduction in a `stream` node, each with the index of its dim that
    is reduced.

    Raises RuleError unless the node reduces exactly one axis and all its operands have that axis.
    """
    rule = rule_of(state) if fold_of(state) else None
    if rule is not None and len(rule.reduced) == 1:
        names = [[a.names[0] for a in operand] for operand in rule.inputs]
        if all(rule.reduced[0] in held for held in names):
            places = (held.index(rule.reduced[0]) for held in names)
            return tuple(zip(state.args, places, strict=True))
    raise RuleError(f"a state of a stream is a reduce or a dot over one axis, not {state!r}")


def streamed_extent(stream: Node) -> Dim:
    """Returns the size of the axis over which a `stream` node reduces."""
    value, axis = streamed_axes(stream.blocks[0].results[0])[0]
    return value.shape[axis]


def _infer(site: Site) -> Type:
    if len(site.blocks) != 3:
        raise site.fail("has three blocks: states, correct, finish")
    states, correct, finish = site.blocks
    types = list(states.type)
    if not types or any(isinstance(t, TupleType) for t in types):
        raise site.fail("block `states` returns at least one tensor")
    extents = {value.shape[axis] for s in states.results for value, axis in streamed_axes(s)}
    if len(extents) != 1:
        raise site.fail(f"the states run over axes of different sizes: {sorted(map(str, extents))}")
    taken: list[Type] = [a.type for a in site.args]
    _match(site, "states", [p.type for p in states.params], taken)
    _match(site, "correct", [p.type for p in correct.params], [*types, *types])
    _match(site, "finish", [p.type for p in finish.params], [*types, *taken])
    if list(correct.type) != types:
        raise site.fail("block `correct` returns the states that it takes")
    part = site.attrs.get("part")
    if part is None:
        return result_type(finish.type)
    (extent,) = extents
    if not isinstance(part, int) or part < 1 or not isinstance(extent, int):
        raise site.fail("has parts of one element or more, of an axis whose size is known")
    count = -(-extent // part)
    return result_type(
        tuple(t.with_shape((count, *t.shape)) for t in finish.type if isinstance(t, TensorType))
    )


def _match(site: Site, block: str, given: Sequence[Type], expected: Sequence[Type]) -> None:
    if list(given) != list(expected):
        raise site.fail(f"block `{block}` takes ({', '.join(map(str, expected))})")


def _evaluate(
    space: Any, node: Node, run: Callable[..., tuple[Any, ...]], *args: Any
) -> tuple[Any, ...] | Any:
    from stack.ir.streaming import TiledSpace, expanded

    if isinstance(space, TiledSpace) and "part" not in node.attrs:
        results = space.stream(node, args)
    else:
        results = run(expanded(node), args)
    return results if isinstance(node.type, TupleType) else results[0]


define(
    OpDef(
        "stream",
        "dependent reductions over one axis, with a rule that corrects their running values",
        "group",
        _infer,
        evaluate=_evaluate,
        attrs=("name: str", "part?: int", "schedule?", "refused?"),
        at_least=1,
    )
)
