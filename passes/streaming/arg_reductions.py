"""Arg-reductions on a GPU: positions of long rows and columns are computed by streams.

The states are the best value so far, and its first index. If a better value is found, no earlier
index counts any more: the index is corrected to one past the end, the neutral element of `min`.

    m = max over k of x[k]
    i = min over k of (k if x[k] == m or x[k] is nan, else size)
    correction of i: i if m_old == m_new or m_old is nan, else size

A nan is the best value of all, so its index is kept once it is found. If the program also asks for
the best value, one stream returns both, so that memory is read once.
"""

from __future__ import annotations

from stack.ir.bounds import INT32
from stack.ir.builder import Builder, constant, param, reshaped
from stack.ir.node import Node
from stack.ir.traits import finds_position, is_elementwise, is_reduction
from stack.ir.types import I32, TensorType
from stack.ir.warp_ops import WARP
from stack.passes.policies.reduction_loops import is_ragged, position_loop, shortest_streamed
from stack.passes.tiling.frame import wide
from stack.passes.tiling.single_ops import first_position, is_best_or_nan
from stack.rewrite.engine import Scope


def streamed_position(node: Node, scope: Scope, min_axis: int) -> Node | None:
    """Rewrites an `argreduce` as a stream if its axis does not fit in the registers of a kernel, or
    if rows are ragged and nothing else reads or computes them.

    Columns whose best value is also computed always become a stream. Short rows become a reduction
    of the positions that equal this value, which fusion puts into its kernel.

    Args:
        node: the op.
        scope: the block, with the target.
        min_axis: the shortest axis of rows that do not fit.
    """
    best = _best_of(node, scope)
    if _is_streamed(node, best, scope, min_axis):
        return _result(node, best, int(best is not None))
    return None if best is None else first_position(Builder(), node, node.args[0], best)


def streamed_best(node: Node, scope: Scope, min_axis: int) -> Node | None:
    """Rewrites a maximum or minimum as a result of the stream that also finds its position.

    The arguments are those of `streamed_position`.
    """
    for other in scope.users(node.args[0]):
        if finds_position(other) and _best_of(other, scope) is node:
            streamed = _is_streamed(other, node, scope, min_axis)
            return _result(other, node, 0) if streamed else None
    return None


def _best_of(node: Node, scope: Scope) -> Node | None:
    """Returns the reduction to the value whose position an `argreduce` finds; None if the program
    does not compute it.
    """
    wanted = node.attrs["kind"], (node.attrs["axis"],)
    return next(
        (
            n
            for n in scope.users(node.args[0])
            if is_reduction(n) and (n.attrs.get("kind"), tuple(n.attrs["axes"])) == wanted
        ),
        None,
    )


def _is_streamed(node: Node, best: Node | None, scope: Scope, min_axis: int) -> bool:
    x, axis = node.args[0], int(node.attrs["axis"])
    sizes = [s for s in x.shape if isinstance(s, int)]
    if len(sizes) < x.tensor.rank or 0 in sizes or sizes[axis] > INT32[1]:
        return False
    is_column = axis < len(sizes) - 1
    if is_column and best is not None:  # fusion keeps reductions of a column apart
        return True
    gpu, is_lone = scope.log.gpu, {*scope.users(x)} <= {node, best} and not is_elementwise(x)
    is_ragged_row = not is_column and is_lone and is_ragged(x) and sizes[axis] > WARP
    if is_ragged_row and position_loop(sizes[axis], gpu):
        return True
    return sizes[axis] >= shortest_streamed(is_column, min_axis, gpu)


def _result(node: Node, best: Node | None, index: int) -> Node:
    """Returns a result of the stream for an `argreduce`: item 0 is the best value, if the stream
    returns it, and the last one is its position.
    """
    if node.tensor.rank:
        made = _stream(node, best)
        return made if best is None else Builder().item(made, index=index)
    # one row: a stream has at least one axis of rows
    row = reshaped(node.args[0], (1, *node.args[0].shape))
    along = Node("argreduce", (row,), {**node.attrs, "axis": 1}, node.tensor.with_shape((1,)))
    value = best
    if best is not None:
        value = Node("reduce", (row,), {**best.attrs, "axes": (1,)}, best.tensor.with_shape((1,)))
    return reshaped(_result(along, value, index), ())


def _stream(node: Node, best: Node | None) -> Node:
    """Builds the stream of an `argreduce` over rows; `best`: its value, if that is a result."""
    x, axis, kind = node.args[0], int(node.attrs["axis"]), str(node.attrs["kind"])
    others = tuple(a for a in range(x.tensor.rank) if a != axis)
    end = constant(x.shape[axis], I32)

    b = Builder()
    p = param("p0", x.type)
    # states in the type of computations are not rounded in each iteration
    values = p if wide(p.dtype) == p.dtype else b.cast(p, type=p.tensor.with_dtype(wide(p.dtype)))
    found = b.reduce(values, kind=kind, axes=(axis,))
    places = b.iota(axis=axis, type=TensorType(I32, x.shape))
    is_best = is_best_or_nan(b, values, b.broadcast(found, axes=others, type=values.type))
    first = b.reduce(b.select(is_best, places, end), kind="min", axes=(axis,))
    states = b.block([p], [found, first])

    b = Builder()
    held = [param(n, t) for n, t in zip(("old0", "old1", "new0", "new1"), 2 * states.type)]
    kept = b.select(is_best_or_nan(b, held[0], held[2]), held[1], end)
    correct = b.block(held, [held[0], kept])

    b = Builder()
    ends = [param("s0", found.type), param("s1", first.type), param("p0", x.type)]
    results = [(ends[0], best)] if best is not None else []
    made = [_converted(b, s, n) for s, n in (*results, (ends[1], node))]
    return Builder().op(
        "stream", [x], {"name": f"arg{kind}"}, (states, correct, b.block(ends, made))
    )


def _converted(b: Builder, value: Node, like: Node) -> Node:
    return value if value.type == like.type else b.cast(value, type=like.type)
