"""Lowerings of ONNX ops that reduce axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stack.frontends.files.lowering_table import sizes
from stack.frontends.files.onnx.lowering import TABLE, Call, lowers
from stack.ir.node import Node
from stack.ir.types import I64, TensorType

KINDS = {"ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}


def _axes(call: Call) -> list[int]:
    """Returns the axes that a reduction drops: all if none are given."""
    rank = call.input(0).tensor.rank
    found = call.integers(1, "axes")
    if not found:
        return [] if call.attrs.get("noop_with_empty_axes") else [*range(rank)]
    return sorted({a % rank for a in found})


def _kept(call: Call, made: Node, axes: list[int]) -> Node:
    """Keeps reduced axes with size 1, unless `keepdims` is 0."""
    if not call.attrs.get("keepdims", 1):
        return made
    return call.reshape(made, [1 if i in axes else s for i, s in enumerate(sizes(call.input(0)))])


def _reduction(name: str) -> Callable[[Call], Node]:
    def lowering(call: Call) -> Node:
        axes = _axes(call)
        made = call.b.reduce(call.input(0), kind=KINDS[name], axes=tuple(axes)) if axes else None
        return call.input(0) if made is None else _kept(call, made, axes)

    return lowering


TABLE.update({name: _reduction(name) for name in KINDS})


@lowers("ReduceMean")
def mean(call: Call) -> Node:
    axes, x = _axes(call), call.input(0)
    if not axes:
        return x
    total = call.b.reduce(x, kind="sum", axes=tuple(axes))
    return _kept(call, call.b.div(total, float(np.prod([sizes(x)[a] for a in axes]))), axes)


@lowers("Softmax", "LogSoftmax")
def softmax(call: Call) -> Node:
    """Along one axis since opset 13, before along all axes from `axis` on."""
    x, b = call.input(0), call.b
    new = call.version >= 13
    axis = call.axis(-1 if new else 1)
    axes = (axis,) if new else tuple(range(axis, x.tensor.rank))
    kept = tuple(i for i in range(x.tensor.rank) if i not in axes)
    most = b.reduce(x, kind="max", axes=axes)
    away = b.sub(x, b.broadcast(most, axes=kept, type=x.type))
    exp = b.exp(away)
    total = b.reduce(exp, kind="sum", axes=axes)
    if call.op == "LogSoftmax":
        return b.sub(away, b.broadcast(b.log(total), axes=kept, type=x.type))
    return b.div(exp, b.broadcast(total, axes=kept, type=x.type))


@lowers("ArgMax", "ArgMin")
def arg(call: Call) -> Node:
    x = call.input(0)
    axis = call.axis(0)
    if call.attrs.get("select_last_index"):
        raise call.fail("select_last_index is not imported")
    own = sizes(x)
    left = TensorType(I64, (*own[:axis], *own[axis + 1 :]))
    kind = "max" if call.op == "ArgMax" else "min"
    return _kept(call, call.b.argreduce(x, kind=kind, axis=axis, type=left), [axis])


@lowers("CumSum")
def running_sum(call: Call) -> Node:
    x = call.input(0)
    if call.attrs.get("exclusive"):
        raise call.fail("exclusive sums are not imported")
    axis = int(call.array(1)) % x.tensor.rank
    is_reversed = bool(call.attrs.get("reverse"))
    return call.b.scan(x, kind="sum", axis=axis, reverse=is_reversed)
