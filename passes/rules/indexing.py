"""Exact rules about gather and scatter. Part of canonicalize.

Indices are in range: the IR requires that, except of scatters with `drop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stack.ir import ops
from stack.ir.axes import Rule, parse_rule
from stack.ir.bounds import INT32
from stack.ir.builder import Builder, make, sliced, spread_by_name
from stack.ir.node import Node
from stack.ir.traits import spread
from stack.ir.types import I32, TensorType, holds_all
from stack.rewrite.engine import Scope, Simple, on


@on("gather")
def gather_first(node: Node, op: Builder, scope: Scope) -> Node | None:
    """gather(op(x, 2.0)) of fewer elements than x has is op(gather(x), 2.0)."""
    return gathered_operand(node, lambda v: None if v.shape else v)


def gathered_operand(node: Node, same: Callable[[Node], Node | None]) -> Node | None:
    """gather(op(x, v)) of fewer elements than x has is op(gather(x), same(v)).

    Args:
        node: a gather.
        same: returns the gathered form of a loop-invariant operand; None for x, the only other
            operand.
    """
    inner, *indices = node.args
    picked, held = _size(node), _size(inner)
    if ops.lookup(inner.op).kind != "elementwise" or picked is None or held is None:
        return None
    known = {a: same(a) for a in inner.args}
    if picked >= held or list(known.values()).count(None) != 1:
        return None
    args = [known[a] or make("gather", (a, *indices), node.attrs) for a in inner.args]
    return make(inner.op, args, inner.attrs, hint=node.type)


@on("scatter")
def scatter_by_comparison(node: Node, op: Builder, scope: Scope) -> Node | None:
    """One update for each row of a constant array: select it where the position equals the index.

    Then no updates collide, and each element is computed on its own. The gradient of a gather that
    picks one element of each row is such a scatter, into zeros.
    """
    x, *indices, updates = node.args
    rule = parse_rule(node.attrs["rule"])
    names = [a.names[0] for a in rule.inputs[0]]
    at = [i for i, a in enumerate(rule.inputs[0]) if a.mark == "!"]
    is_constant = spread(x) == ()
    if len(at) != 1 or not is_constant:
        return None
    extent = node.shape[at[0]]
    if not isinstance(extent, int) or extent > INT32[1]:
        return None
    if node.attrs.get("drop") and not holds_all(I32, indices[0].dtype):
        return None  # an index out of range could wrap into it
    if any(s != 1 for a, s in zip(rule.inputs[-1], updates.shape) if a.names[0] not in names):
        return None
    own = [[a.names[0] for a in o] for o in rule.inputs[1:]]
    if any(names[at[0]] in o for o in own):
        return None
    index = make("cast", (indices[0],), hint=indices[0].tensor.with_dtype(I32))
    places = make("iota", (), {"axis": at[0]}, hint=TensorType(I32, node.shape))
    is_here = make("eq", (spread_by_name(index, own[0], names, node.shape), places))
    update = spread_by_name(updates, own[1], names, node.shape)
    kind = str(node.attrs["kind"])
    made = update if kind == "set" else make(kind, (x, update))
    return make("select", (is_here, made, x))


@on("scatter")
def scatter_without_indices(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A scatter without indices combines its operand with the updates elementwise.

    Updates along an axis that the operand lacks are combined first. If the scatter sets, the last
    update counts.
    """
    rule = parse_rule(node.attrs["rule"])
    if any(a.mark == "!" for a in rule.inputs[0]):
        return None
    x, updates = node.args
    names, own = ([a.names[0] for a in operand] for operand in rule.inputs)
    meeting = tuple(i for i, n in enumerate(own) if n not in names)
    kind = str(node.attrs["kind"])
    if meeting and kind == "set":
        if not all(isinstance(s, int) for s in updates.shape):
            return None  # the number of updates is known only at run time
        if updates.tensor.size == 0:
            return x
        updates = _last_along(updates, meeting)
    elif meeting:
        reduction = {"add": "sum", "mul": "prod"}.get(kind, kind)
        updates = make("reduce", (updates,), {"axes": meeting, "kind": reduction})
        own = [n for n in own if n in names]
    update = spread_by_name(updates, own, names, node.shape)
    return update if kind == "set" else make(kind, (x, update))


def _last_along(x: Node, axes: Sequence[int]) -> Node:
    """Slices a value to its last element along each of `axes`, which keep size 1."""
    start = tuple(s - 1 if i in axes else 0 for i, s in enumerate(x.shape))
    return sliced(x, start, x.shape)


@on("gather", "scatter")
def index_of_rows(node: Node, op: Builder, scope: Scope) -> Node | None:
    """An index that is broadcast along an axis that another operand has selects whole rows."""
    rule = parse_rule(node.attrs["rule"])
    own = [[a.names[0] for a in operand] for operand in rule.inputs]
    last = 1 + sum(a.mark == "!" for a in rule.inputs[0])  # of a scatter, the updates
    for i, index in enumerate(node.args):
        kept = spread(index)
        if not 0 < i < last or kept is None or len(kept) == index.tensor.rank:
            continue
        gone = {n for k, n in enumerate(own[i]) if k not in kept}
        others = (o for k, o in enumerate(rule.inputs[:last]) if k != i)
        if not gone <= {a.names[0] for operand in others for a in operand if not a.mark}:
            continue
        args = [*node.args[:i], index.args[0], *node.args[i + 1 :]]
        inputs = list(rule.inputs)
        inputs[i] = tuple(rule.inputs[i][k] for k in kept)
        attrs = {**node.attrs, "rule": str(Rule(tuple(inputs), rule.outputs))}
        return make(node.op, args, attrs)
    return None


def _size(node: Node) -> int | None:
    sizes = [s for s in node.shape if isinstance(s, int)]
    return math.prod(sizes) if len(sizes) == node.tensor.rank else None


INDEX_RULES: tuple[Simple, ...] = (
    gather_first,
    index_of_rows,
    scatter_without_indices,
    scatter_by_comparison,
)
