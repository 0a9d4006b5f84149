"""Lowerings of ATen reductions, scans, softmax and sorts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stack.frontends.torch.aten.lowering import (
    Context,
    NotLowered,
    axis_of,
    lowers,
    need_float,
    wide,
)
from stack.ir.dim import Expr
from stack.ir.node import Node
from stack.ir.types import F64, I64, DType, TensorType


@lowers("sum.dim_IntList", "sum.default", "prims.sum.default")
def _sum(
    cx: Context, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None,
    output_dtype: DType | None = None,
) -> Node:  # fmt: skip
    x = cx.cast(x, _result(cx).dtype)
    return cx.reduce("sum", x, cx.axes(dim, x.tensor.rank), keepdim)


def _result(cx: Context) -> TensorType:
    return cx.want[0] if isinstance(cx.want, tuple) else cx.want


@lowers("prod.dim_int", "prod.default", "prims.prod.default")
def _prod(
    cx: Context, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None,
    output_dtype: DType | None = None,
) -> Node:  # fmt: skip
    x = cx.cast(x, _result(cx).dtype)
    return cx.reduce("prod", x, cx.axes(dim, x.tensor.rank), keepdim)


@lowers("mean.dim", "mean.default")
def _mean(
    cx: Context, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Node:
    need_float(x)
    out: DType = cx.want.dtype
    return cx.cast(mean(cx, cx.cast(x, wide(out)), cx.axes(dim, x.tensor.rank), keepdim), out)


def mean(cx: Context, x: Node, axes: Sequence[int], keep: bool) -> Node:
    """Computes the sum over the count, in the operand's type."""
    total = cx.reduce("sum", x, axes, keep)
    count = cx.count(x.shape, axes)
    divisor = float(count) if isinstance(count, int) else cx.scalar(count, x.dtype)
    return cx.elementwise("div", total, divisor)


def _extremum(name: str, kind: str) -> None:
    @lowers(f"a{name}.default", f"prims.a{name}.default")
    def lower(cx: Context, x: Node, dim: Any = (), keepdim: bool = False) -> Node:
        return cx.reduce(kind, x, cx.axes(dim, x.tensor.rank), keepdim)

    @lowers(f"{name}.default")
    def lower_all(cx: Context, x: Node) -> Node:
        return cx.reduce(kind, x, range(x.tensor.rank))

    @lowers(f"{name}.dim")
    def lower_dim(cx: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
        axes = cx.axes(dim, x.tensor.rank)
        index = arg_extremum(cx, kind, x, dim, keepdim)
        return cx.reduce(kind, x, axes, keepdim), index

    @lowers(f"arg{name}.default")
    def lower_arg(cx: Context, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        if dim is None:
            flat = arg_extremum(cx, kind, cx.reshape(x, [x.tensor.size]), 0, False)
            return cx.reshape(flat, cx.want.shape)
        return arg_extremum(cx, kind, x, dim, keepdim)


def arg_extremum(cx: Context, kind: str, x: Node, dim: int, keep: bool) -> Node:
    """Returns the index of the first maximum or minimum along an axis."""
    if not x.tensor.rank:
        return cx.scalar(0, I64)
    axis = axis_of(dim, x.tensor.rank)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    out = cx.b.argreduce(x, kind=kind, axis=axis, type=TensorType(I64, shape))
    return cx.keep_axes(out, x.shape, [axis]) if keep else out


_extremum("max", "max")
_extremum("min", "min")


def _quantifier(name: str, kind: str) -> None:
    @lowers(f"{name}.default", f"{name}.dim", f"{name}.dims")
    def lower(cx: Context, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
        out = cx.reduce(kind, cx.truth(x), cx.axes(dim, x.tensor.rank), keepdim)
        return cx.cast(out, cx.want.dtype)


_quantifier("any", "or")
_quantifier("all", "and")


# ---- variance and norms


def variance(
    cx: Context, x: Node, axes: Sequence[int], correction: float, keep: bool
) -> tuple[Node, Node]:
    """Computes variance and mean in two passes: the mean, then the squared deviations."""
    average = mean(cx, x, axes, False)
    centered = cx.elementwise("sub", x, cx.stretch(average, x.shape, axes))
    squares = cx.reduce("sum", cx.elementwise("mul", centered, centered), axes, keep)
    count = cx.count(x.shape, axes)
    if isinstance(count, int):
        divisor: Any = max(float(count) - correction, 0.0)
    else:
        rest = cx.elementwise("sub", cx.scalar(count, x.dtype), float(correction))
        divisor = cx.elementwise("max", rest, 0.0)
    out = cx.elementwise("div", squares, divisor)
    return out, cx.keep_axes(average, x.shape, axes) if keep else average


def _spread(cx: Context, x: Node, dim: Any, correction: Any, keepdim: bool) -> tuple[Node, Node]:
    need_float(x)
    correction = 1.0 if correction is None else float(correction)
    x = cx.cast(x, wide(x.dtype))
    return variance(cx, x, cx.axes(dim, x.tensor.rank), correction, keepdim)


@lowers("var.correction")
def _var(
    cx: Context, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Node:
    return cx.cast(_spread(cx, x, dim, correction, keepdim)[0], cx.want.dtype)


@lowers("prims.var.default")
def _prims_var(cx: Context, x: Node, dim: Any, correction: Any = 1.0, **_: Any) -> Node:
    return cx.cast(_spread(cx, x, dim, correction, False)[0], cx.want.dtype)


@lowers("var_mean.correction")
def _var_mean(
    cx: Context, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Node, ...]:
    pair = _spread(cx, x, dim, correction, keepdim)
    return tuple(cx.cast(v, t.dtype) for v, t in zip(pair, cx.want, strict=True))


@lowers("linalg_vector_norm.default")
def _vector_norm(
    cx: Context, x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Node:  # fmt: skip
    need_float(x)
    out: DType = cx.want.dtype
    size = cx.elementwise("abs", cx.cast(x, wide(out)))
    axes = cx.axes(dim, x.tensor.rank)
    if ord == math.inf or ord == -math.inf:
        return cx.cast(cx.reduce("max" if ord > 0 else "min", size, axes, keepdim), out)
    if ord == 0:
        count = cx.cast(cx.elementwise("ne", size, 0.0), size.dtype)
        return cx.cast(cx.reduce("sum", count, axes, keepdim), out)
    if ord == 1 or cx.count(x.shape, axes) == 1:
        return cx.cast(cx.reduce("sum", size, axes, keepdim), out)
    if ord == 2:
        total = cx.reduce("sum", cx.elementwise("mul", size, size), axes, keepdim)
        return cx.cast(cx.elementwise("sqrt", total), out)
    powers = cx.reduce("sum", cx.elementwise("pow", size, float(ord)), axes, keepdim)
    return cx.cast(cx.elementwise("pow", powers, 1.0 / ord), out)


# ---- softmax


def _shifted(cx: Context, x: Node, axes: tuple[int, ...]) -> Node:
    largest = cx.reduce("max", x, axes)
    return cx.elementwise("sub", x, cx.stretch(largest, x.shape, axes))


@lowers("_softmax.default")
def _softmax(cx: Context, x: Node, dim: int, half_to_float: bool) -> Node:
    out: DType = cx.want.dtype
    x = cx.cast(x, wide(x.dtype))
    axes = cx.axes(dim, x.tensor.rank)
    powers = cx.elementwise("exp", _shifted(cx, x, axes))
    total = cx.stretch(cx.reduce("sum", powers, axes), x.shape, axes)
    return cx.cast(cx.elementwise("div", powers, total), out)


@lowers("_log_softmax.default")
def _log_softmax(cx: Context, x: Node, dim: int, half_to_float: bool) -> Node:
    out: DType = cx.want.dtype
    x = cx.cast(x, wide(x.dtype))
    axes = cx.axes(dim, x.tensor.rank)
    shifted = _shifted(cx, x, axes)
    total = cx.reduce("sum", cx.elementwise("exp", shifted), axes)
    logarithm = cx.stretch(cx.elementwise("log", total), x.shape, axes)
    return cx.cast(cx.elementwise("sub", shifted, logarithm), out)


# ---- scans


def _running(name: str, kind: str) -> None:
    @lowers(f"{name}.default")
    def lower(cx: Context, x: Node, dim: int, *, dtype: DType | None = None) -> Node:
        x = cx.cast(x, cx.want.dtype)
        if not x.tensor.rank:
            return x
        return cx.b.scan(x, kind=kind, axis=axis_of(dim, x.tensor.rank), reverse=False)


_running("cumsum", "sum")
_running("cumprod", "prod")


def _running_extremum(name: str, kind: str) -> None:
    @lowers(f"{name}.default")
    def lower(cx: Context, x: Node, dim: int) -> tuple[Node, Node]:
        if not x.tensor.rank:
            return x, cx.scalar(0, I64)
        axis = axis_of(dim, x.tensor.rank)
        best = cx.b.scan(x, kind=kind, axis=axis, reverse=False)
        same = cx.elementwise("eq", x, best)
        if x.dtype.is_float:
            same = cx.elementwise("or", same, cx.elementwise("isnan", x))
        # the last index so far at which the extremum occurred
        place = cx.select(same, cx.iota(x.shape, axis), 0, I64)
        return best, cx.b.scan(place, kind="max", axis=axis, reverse=False)


_running_extremum("cummax", "max")
_running_extremum("cummin", "min")


@lowers("logcumsumexp.default")
def _logcumsumexp(cx: Context, x: Node, dim: int) -> Node:
    need_float(x)
    if not x.tensor.rank:
        return x
    out, axis = x.dtype, axis_of(dim, x.tensor.rank)
    x = cx.cast(x, F64)
    largest = cx.reduce("max", x, [axis])
    finite = cx.elementwise("isfinite", largest)
    shift = cx.stretch(cx.select(finite, largest, 0.0), x.shape, [axis])
    total = cx.b.scan(
        cx.elementwise("exp", cx.elementwise("sub", x, shift)), kind="sum", axis=axis, reverse=False
    )
    return cx.cast(cx.elementwise("add", cx.elementwise("log", total), shift), out)


# ---- order


def _ordered(cx: Context, x: Node, axis: int, descending: bool) -> tuple[Node, Node]:
    both = cx.b.sort(x, cx.iota(x.shape, axis), axis=axis, num_keys=1, descending=descending)
    return cx.b.item(both, index=0), cx.b.item(both, index=1)


@lowers("sort.default", "sort.stable")
def _sort(
    cx: Context, x: Node, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Node, Node]:
    if not x.tensor.rank:
        return x, cx.scalar(0, I64)
    return _ordered(cx, x, axis_of(dim, x.tensor.rank), descending)


@lowers("topk.default")
def _topk(
    cx: Context, x: Node, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Node, Node]:  # fmt: skip
    if not x.tensor.rank:
        return x, cx.scalar(0, I64)
    axis = axis_of(dim, x.tensor.rank)
    values, places = _ordered(cx, x, axis, largest)
    return cx.slice(values, axis, 0, k), cx.slice(places, axis, 0, k)


@lowers("kthvalue.default")
def _kthvalue(
    cx: Context, x: Node, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Node, Node]:
    if not x.tensor.rank:
        return x, cx.scalar(0, I64)
    axis = axis_of(dim, x.tensor.rank)
    pair = _ordered(cx, x, axis, False)
    picked = [cx.select_at(v, axis, k - 1) for v in pair]
    if keepdim:
        picked = [cx.keep_axes(v, x.shape, [axis]) for v in picked]
    return picked[0], picked[1]


@lowers("median.default", "nanmedian.default")
def _median(cx: Context, x: Node) -> Node:
    flat = cx.reshape(x, [x.tensor.size])
    return _middle(cx, flat, 0, skips_nan="nanmedian" in cx.name)[0]


@lowers("median.dim", "nanmedian.dim")
def _median_dim(cx: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    if not x.tensor.rank:
        return x, cx.scalar(0, I64)
    axis = axis_of(dim, x.tensor.rank)
    value, place = _middle(cx, x, axis, skips_nan="nanmedian" in cx.name)
    if keepdim:
        return cx.keep_axes(value, x.shape, [axis]), cx.keep_axes(place, x.shape, [axis])
    return value, place


def _middle(cx: Context, x: Node, axis: int, skips_nan: bool) -> tuple[Node, Node]:
    """Returns the lower median along an axis, and its index.

    A nan is the result, or is skipped if `skips_nan`.
    """
    size = x.shape[axis]
    if isinstance(size, Expr) or size == 0:
        raise NotLowered("median of a symbolic or empty size")
    if not x.dtype.is_float:
        return _at_middle(cx, x, axis, size)
    nan = cx.elementwise("isnan", x)
    if skips_nan:
        return _middle_number(cx, x, nan, axis, size)
    bad = cx.reduce("or", nan, [axis])
    first_nan = cx.cast(arg_extremum(cx, "max", cx.cast(nan, I64), axis, False), I64)
    value, place = _at_middle(cx, x, axis, size)  # a nan takes precedence
    return cx.select(bad, math.nan, value, x.dtype), cx.select(bad, first_nan, place, I64)


def _at_middle(cx: Context, x: Node, axis: int, size: int) -> tuple[Node, Node]:
    """Returns the middle element of the sorted axis and its index; only that element is read."""
    value, place = (cx.select_at(v, axis, (size - 1) // 2) for v in _ordered(cx, x, axis, False))
    return value, place


def _middle_number(cx: Context, x: Node, nan: Node, axis: int, size: int) -> tuple[Node, Node]:
    """Returns the lower median of the values that are not nan, and its index.

    Enough nan are replaced by -inf that the median of the numbers is in the middle of the whole
    order. If the result is -inf or nan, the index is searched.
    """
    marks = cx.cast(nan, I64)
    count = cx.reduce("sum", marks, [axis], keep=True)
    numbers = cx.elementwise("max", cx.elementwise("sub", size - 1, count), 0)
    below = cx.elementwise("sub", (size - 1) // 2, cx.elementwise("shr", numbers, 1))
    rank = cx.b.scan(marks, kind="sum", axis=axis, reverse=False)
    is_below = cx.elementwise("and", nan, cx.elementwise("le", rank, below))
    value, place = _at_middle(cx, cx.select(is_below, -math.inf, x, x.dtype), axis, size)
    whole = cx.keep_axes(value, x.shape, [axis])
    same = cx.elementwise("and", nan, cx.elementwise("isnan", whole))
    same = cx.elementwise("or", same, cx.elementwise("eq", x, whole))
    first = cx.cast(arg_extremum(cx, "max", cx.cast(same, I64), axis, False), I64)
    is_first = cx.elementwise(
        "or", cx.elementwise("isnan", value), cx.elementwise("eq", value, -math.inf)
    )
    return value, cx.select(is_first, first, place, I64)
