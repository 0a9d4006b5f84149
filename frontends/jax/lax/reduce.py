"""Lowerings of reductions, running reductions and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stack.frontends.jax.lax.lowering import NoLowering, Site, lower
from stack.ir.node import Node
from stack.ir.types import DTYPES, I32, DType

KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or"}
OPS = {kind: op for op, kind in KINDS.items()}


@lower("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or")
def _reduce(s: Site, x: Node, *, axes: Sequence[int], **_: Any) -> Node:
    kind = s.eqn.primitive.name.removeprefix("reduce_")
    return reduce(s, x, kind, axes)


@lower("psum", "pmax", "pmin")
def _reduce_lanes(s: Site, *args: Node, axes: Sequence[Any], **_: Any) -> list[Node]:
    """Reduces over lanes: `vmap` replaces the name of its axis by the axis."""
    if any(isinstance(a, str) for a in axes):
        raise NoLowering("a reduction between devices")
    return [reduce(s, x, s.eqn.primitive.name[1:], axes) for x in args]


def reduce(s: Site, x: Node, kind: str, axes: Sequence[int]) -> Node:
    """Reduces over axes; returns `x` for no axes. For bool, max is or and min is and."""
    if not len(axes):
        return x
    if x.dtype.kind == "b":
        kind = {"max": "or", "min": "and", "sum": "or", "prod": "and"}.get(kind, kind)
    return s.b.reduce(x, kind=kind, axes=tuple(sorted(int(a) for a in axes)))


@lower("reduce_xor")
def _reduce_xor(s: Site, x: Node, *, axes: Sequence[int], **_: Any) -> Node:
    if x.dtype.kind != "b":
        raise NoLowering("exclusive or of integers along an axis")
    count = reduce(s, s.cast(x, I32), "sum", axes)
    return s.b.ne(s.b.and_(count, 1), 0)


def monoid(jaxpr: Any) -> str | None:
    """Returns the kind of reduction of a two-argument jaxpr, if it is one of ours."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    if len(jaxpr.eqns) != 1 or len(jaxpr.invars) != 2 or len(jaxpr.outvars) != 1:
        return None
    eqn = jaxpr.eqns[0]
    if jaxpr.outvars[0] is not eqn.outvars[0] or set(eqn.invars) != set(jaxpr.invars):
        return None
    return KINDS.get(eqn.primitive.name)


def combine(s: Site, kind: str, x: Node, y: Node) -> Node:
    """Builds one step of a reduction."""
    return s.b.op(OPS[kind], (x, y))


@lower("reduce")
def _general_reduce(
    s: Site, *operands: Node, jaxpr: Any, dimensions: Sequence[int], **_: Any
) -> Node:
    kind = monoid(jaxpr)
    if kind is None or len(operands) != 2:
        raise NoLowering("a reduction by an arbitrary function")
    x, start = operands
    return combine(s, kind, reduce(s, x, kind, dimensions), start)


@lower("argmax", "argmin")
def _arg_reduce(s: Site, x: Node, *, axes: Sequence[int], **_: Any) -> Node:
    kind = s.eqn.primitive.name.removeprefix("arg")
    if x.dtype.kind == "b":
        x = s.cast(x, I32)
    return s.b.argreduce(x, kind=kind, axis=int(axes[0]), type=s.type)


@lower("cumsum", "cumprod", "cummax", "cummin")
def _running(s: Site, x: Node, *, axis: int, reverse: bool, **_: Any) -> Node:
    kind = s.eqn.primitive.name.removeprefix("cum")
    return s.b.scan(x, kind=kind, axis=axis, reverse=reverse)


@lower("cumlogsumexp")
def _running_logsumexp(s: Site, x: Node, *, axis: int, reverse: bool, **_: Any) -> Node:
    def decomposed(v: Any) -> Any:
        return jax.lax.associative_scan(jnp.logaddexp, v, reverse=reverse, axis=axis)

    return s.trace(decomposed, x)[0]


@lower("sort")
def _sort(s: Site, *args: Node, dimension: int, num_keys: int, **_: Any) -> list[Node]:
    node = s.b.op("sort", args, {"axis": dimension, "num_keys": num_keys, "descending": False})
    return s.items(node, "sorted")


@lower("top_k")
def _top_k(s: Site, x: Node, *, k: int, axis: int = -1, **_: Any) -> list[Node]:
    axis = axis % x.tensor.rank
    place = s.b.iota(axis=axis, type=x.tensor.with_dtype(s.types[1].dtype))
    node = s.b.sort(total_order(s, x), place, axis=axis, num_keys=1, descending=True)
    keys, places = (s.slice(n, [0] * x.tensor.rank, s.type.shape) for n in s.items(node, "top"))
    return [_of_total_order(s, keys, x.dtype), places]


def total_order(s: Site, x: Node) -> Node:
    """Maps floats to integers in their total order: -nan, -inf, -0, 0, inf, nan; others unchanged.

    `top_k` and `lt_to` use it; `sort` treats zeros of both signs as equal, and nans too.
    """
    if not x.dtype.is_float:
        return x
    bits = s.b.bitcast(x, type=x.tensor.with_dtype(DTYPES[f"i{x.dtype.bits}"]))
    return _other_order(s, bits)


def _of_total_order(s: Site, keys: Node, dtype: DType) -> Node:
    """Converts keys of `total_order` back to values of type `dtype`."""
    if not dtype.is_float:
        return keys
    return s.b.bitcast(_other_order(s, keys), type=keys.tensor.with_dtype(dtype))


def _other_order(s: Site, x: Node) -> Node:
    """Converts sign and magnitude to two's complement, or back, which is the same operation.

    It flips the value bits of negative integers, which reverses their order.
    """
    most = (1 << (x.dtype.bits - 1)) - 1
    return s.b.select(s.b.lt(x, 0), s.b.xor(x, most), x)


@lower("approx_top_k")
def _approx_top_k(
    s: Site, x: Node, *, reduction_dimension: int, is_max_k: bool, aggregate_to_topk: bool, **_: Any
) -> list[Node]:
    if not aggregate_to_topk:
        raise NoLowering("partial results of an approximate top-k")
    axis = reduction_dimension % x.tensor.rank
    place = s.b.iota(axis=axis, type=x.tensor.with_dtype(s.types[1].dtype))
    node = s.b.sort(x, place, axis=axis, num_keys=1, descending=is_max_k)
    return [s.slice(part, [0] * x.tensor.rank, s.type.shape) for part in s.items(node, "top")]
