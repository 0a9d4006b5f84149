"""Lowerings of elementwise ATen ops of one operand."""

from __future__ import annotations

import math

from stack.frontends.arithmetic.erfc import erfc
from stack.frontends.torch.aten.lowering import Context, lowers, need_float
from stack.ir.node import Node
from stack.ir.types import BOOL, DTYPES, F32, DType

_FLOAT = (
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfinv",
    "lgamma", "digamma",
)  # fmt: skip
_WHOLE = ("floor", "ceil", "round", "trunc")


def _float_unary(op: str) -> None:
    @lowers(f"{op}.default", f"prims.{op}.default")
    def lower(cx: Context, x: Node) -> Node:
        need_float(x)
        return cx.elementwise(op, x, dtype=cx.want.dtype)


for _op in _FLOAT:
    _float_unary(_op)


def _whole_unary(op: str) -> None:
    @lowers(f"{op}.default", f"prims.{op}.default")
    def lower(cx: Context, x: Node) -> Node:
        return cx.elementwise(op, x) if x.dtype.is_float else x


for _op in _WHOLE:
    _whole_unary(_op)


@lowers("abs.default", "prims.abs.default")
def _abs(cx: Context, x: Node) -> Node:
    need_float(x)
    return x if x.dtype.kind in "bu" else cx.elementwise("abs", x)


@lowers("neg.default", "prims.neg.default")
def _neg(cx: Context, x: Node) -> Node:
    return cx.elementwise("neg", x)


@lowers("sign.default", "sgn.default", "prims.sign.default")
def _sign(cx: Context, x: Node) -> Node:
    if x.dtype is BOOL:
        return x
    if not x.dtype.is_float:
        return cx.elementwise("sign", x)
    # torch defines the sign of nan and of both zeros as 0.0
    below = cx.select(cx.elementwise("lt", x, 0.0), -1.0, 0.0, x.dtype)
    return cx.select(cx.elementwise("gt", x, 0.0), 1.0, below)


@lowers("log10.default", "prims.log10.default")
def _log10(cx: Context, x: Node) -> Node:
    out: DType = cx.want.dtype
    x = cx.cast(x, F32) if out.bits == 16 else cx.cast(x, out)
    return cx.cast(cx.elementwise("mul", cx.elementwise("log", x), 1 / math.log(10)), out)


@lowers("erfc.default", "prims.erfc.default")
def _erfc(cx: Context, x: Node) -> Node:
    out: DType = cx.want.dtype
    # exp(-x x) amplifies the rounding error of x x, which is negligible in f64
    return cx.cast(erfc(cx.b, cx.cast(x, DTYPES["f64"])), out)


@lowers("reciprocal.default", "prims.reciprocal.default")
def _reciprocal(cx: Context, x: Node) -> Node:
    return cx.elementwise("div", 1.0, x, dtype=cx.want.dtype)


@lowers("square.default")
def _square(cx: Context, x: Node) -> Node:
    return cx.elementwise("mul", x, x, dtype=cx.want.dtype)


@lowers("relu.default")
def _relu(cx: Context, x: Node) -> Node:
    return cx.elementwise("max", x, 0, dtype=x.dtype)


@lowers("isnan.default")
def _isnan(cx: Context, x: Node) -> Node:
    return cx.elementwise("isnan", x) if x.dtype.is_float else cx.full(False, cx.want)


@lowers("isinf.default")
def _isinf(cx: Context, x: Node) -> Node:
    if not x.dtype.is_float:
        return cx.full(False, cx.want)
    return cx.elementwise("eq", cx.elementwise("abs", x), math.inf)


@lowers("isfinite.default", "prims.isfinite.default")
def _isfinite(cx: Context, x: Node) -> Node:
    return cx.elementwise("isfinite", x) if x.dtype.is_float else cx.full(True, cx.want)


@lowers("signbit.default", "prims.signbit.default")
def _signbit(cx: Context, x: Node) -> Node:
    if not x.dtype.is_float:
        return cx.elementwise("lt", x, 0) if x.dtype.kind == "i" else cx.full(False, cx.want)
    bits = cx.b.bitcast(x, type=x.tensor.with_dtype(DTYPES[f"i{x.dtype.bits}"]))
    return cx.elementwise("lt", bits, 0)


@lowers("logical_not.default")
def _logical_not(cx: Context, x: Node) -> Node:
    return cx.b.not_(x) if x.dtype is BOOL else cx.elementwise("eq", x, 0)


@lowers("bitwise_not.default", "prims.bitwise_not.default")
def _bitwise_not(cx: Context, x: Node) -> Node:
    return cx.b.not_(x)
