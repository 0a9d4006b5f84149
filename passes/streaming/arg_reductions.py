"""Arg-reductions of long rows and columns on a GPU, as streams.

The states are the best value so far, and its first index. If a better value is found, no earlier
index counts any more: the index is corrected to one past the end, the neutral element of `min`.

    m = max over k of x[k]
    i = min over k of (k if x[k] == m or x[k] is nan, else size)
    correction of i: i if m_old == m_new or m_old is nan, else size

A nan is the best value of all, so its index is kept once it is found.
"""

from __future__ import annotations

from stack.ir.builder import Builder, constant, param
from stack.ir.integers import INT32
from stack.ir.node import Node
from stack.ir.types import I32, TensorType
from stack.passes.policies.reduction_loops import shortest_streamed
from stack.passes.rules.dot_layout import reshaped
from stack.passes.tiling.single_ops import is_best_or_nan
from stack.rewrite.engine import Scope


def streamed_position(node: Node, scope: Scope, min_axis: int) -> Node | None:
    """Rewrites an `argreduce` as a stream if its axis does not fit in the registers of a kernel.

    Args:
        node: the op.
        scope: the block, with the target.
        min_axis: the shortest axis of rows that do not fit.
    """
    x, axis = node.args[0], int(node.attrs["axis"])
    sizes = [s for s in x.shape if isinstance(s, int)]
    if len(sizes) < x.tensor.rank or 0 in sizes or sizes[axis] > INT32[1]:
        return None
    if sizes[axis] < shortest_streamed(axis < len(sizes) - 1, min_axis, scope.log.gpu):
        return None
    others = tuple(a for a in range(len(sizes)) if a != axis)
    if not others:  # one row: a stream has at least one axis of rows
        made = streamed_position(_on_a_row(node), scope, min_axis)
        return None if made is None else reshaped(made, ())
    end = constant(sizes[axis], I32)
    kind = str(node.attrs["kind"])

    b = Builder()
    p = param("p0", x.type)
    best = b.reduce(p, kind=kind, axes=(axis,))
    whole = TensorType(I32, x.shape)
    places = b.iota(axis=axis, type=whole)
    is_best = is_best_or_nan(b, p, b.broadcast(best, axes=others, type=x.type))
    first = b.reduce(b.select(is_best, places, end), kind="min", axes=(axis,))
    states = b.block([p], [best, first])

    b = Builder()
    held = [param(n, t) for n, t in zip(("old0", "old1", "new0", "new1"), 2 * states.type)]
    kept = b.select(is_best_or_nan(b, held[0], held[2]), held[1], end)
    correct = b.block(held, [held[0], kept])

    b = Builder()
    ends = [param("s0", best.type), param("s1", first.type), param("p0", x.type)]
    finish = b.block(ends, [b.cast(ends[1], type=node.type)])
    b = Builder()
    return b.op("stream", [x], {"name": f"arg{kind}"}, (states, correct, finish))


def _on_a_row(node: Node) -> Node:
    row = reshaped(node.args[0], (1, node.args[0].shape[0]))
    hint = node.tensor.with_shape((1,))
    return Node("argreduce", (row,), {**node.attrs, "axis": 1}, hint)
