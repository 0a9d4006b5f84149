"""Lowerings of ATen ops: elementwise ops of several operands, selections and conversions."""

from __future__ import annotations

import math
from typing import Any

from stack.frontends.arithmetic.complex_pairs import Pair, magnitude
from stack.frontends.arithmetic.storage_types import widened
from stack.frontends.torch.aten.bounds import nonzero
from stack.frontends.torch.aten.lowering import (
    Context,
    NotLowered,
    Promise,
    lowers,
    need_float,
    wide,
)
from stack.ir.dim import Expr
from stack.ir.node import Node
from stack.ir.types import BOOL, DTYPES, F16, F32, DType

_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


# ---- two operands


def _compare(op: str) -> None:
    @lowers(f"{op}.Tensor", f"{op}.Scalar", f"prims.{op}.default")
    def lower(cx: Context, x: Any, y: Any) -> Node:
        return cx.elementwise(op, x, y)


for _op in _COMPARE:
    _compare(_op)


# by our op, the overloads that compute it in the type of their result
_BINARY = {
    "mul": ("mul.Tensor", "mul.Scalar", "prims.mul.default"),
    "div": ("div.Tensor", "div.Scalar", "true_divide.Tensor", "prims.div.default"),
    "pow": ("pow.Tensor_Tensor", "pow.Scalar", "prims.pow.default"),
    "max": ("maximum.default", "prims.maximum.default", "clamp_min.default", "clamp_min.Tensor"),
    "min": ("minimum.default", "prims.minimum.default", "clamp_max.default", "clamp_max.Tensor"),
    "atan2": ("atan2.default", "prims.atan2.default"),
}


def _binary(op: str) -> None:
    @lowers(*_BINARY[op])
    def lower(cx: Context, x: Any, y: Any) -> Node:
        return cx.elementwise(op, x, y, dtype=cx.want.dtype)


for _op in _BINARY:
    _binary(_op)


@lowers("add.Tensor", "add.Scalar", "prims.add.default")
def _add(cx: Context, x: Any, y: Any, *, alpha: Any = 1, op: str = "add") -> Node:
    """Computes `x + alpha * y`. For 16-bit floats numbers are rounded first, and the sum once."""
    dtype: DType = cx.want.dtype
    if isinstance(alpha, int | float) and alpha == 1:
        return cx.elementwise(op, x, y, dtype=dtype)
    kind = wide(dtype)
    x, y, alpha = (cx.cast(cx.scalar(v, dtype), kind) for v in (x, y, alpha))
    return cx.cast(cx.elementwise(op, x, cx.elementwise("mul", y, alpha)), dtype)


@lowers("sub.Tensor", "sub.Scalar", "prims.sub.default")
def _sub(cx: Context, x: Any, y: Any, *, alpha: Any = 1) -> Node:
    return _add(cx, x, y, alpha=alpha, op="sub")


@lowers("rsub.Tensor", "rsub.Scalar")
def _rsub(cx: Context, x: Any, y: Any, alpha: Any = 1) -> Node:
    return _add(cx, y, x, alpha=alpha, op="sub")


@lowers("prims.fma.default")  # from Dynamo's `addcmul_` and `addcdiv_`
def _fma(cx: Context, x: Any, y: Any, z: Any) -> Node:
    dtype: DType = cx.want.dtype
    kind = F32 if dtype.bits == 16 and dtype.is_float else dtype
    product = cx.elementwise("mul", x, y, dtype=kind)
    return cx.cast(cx.elementwise("add", product, z, dtype=kind), dtype)


@lowers("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(cx: Context, x: Any, y: Any, *, rounding_mode: str | None = None) -> Node:
    dtype: DType = cx.want.dtype
    if rounding_mode is None:
        return cx.elementwise("div", x, y, dtype=dtype)
    if rounding_mode == "floor":
        return _floor_divide(cx, x, y)
    if dtype.is_integer:
        return cx.elementwise("div", x, nonzero(cx, y), dtype=dtype)
    kind = F32 if dtype.bits == 16 else dtype
    return cx.cast(cx.elementwise("trunc", cx.elementwise("div", x, y, dtype=kind)), dtype)


@lowers("floor_divide.default", "floor_divide.Scalar")
def _floor_divide(cx: Context, x: Any, y: Any) -> Node:
    dtype: DType = cx.want.dtype
    if dtype.kind == "u":
        return cx.elementwise("div", x, nonzero(cx, y), dtype=dtype)
    kind = F32 if dtype.bits == 16 and dtype.is_float else dtype
    nodes, _ = cx.align([x, y], kind)
    a, b = nodes
    rest = cx.elementwise("rem", a, nonzero(cx, b))
    crosses = cx.b.and_(*cx.align([cx.elementwise("ne", rest, 0), _opposite(cx, rest, b)], BOOL)[0])
    if dtype.is_integer:
        whole = cx.elementwise("div", a, b)
        return cx.select(crosses, cx.elementwise("sub", whole, 1), whole)
    return cx.cast(_floor_divide_float(cx, a, b, rest, crosses), dtype)


def _opposite(cx: Context, rest: Node, divisor: Node) -> Node:
    return cx.elementwise("ne", cx.elementwise("lt", rest, 0), cx.elementwise("lt", divisor, 0))


def _floor_divide_float(cx: Context, a: Node, b: Node, rest: Node, crosses: Node) -> Node:
    """Divides as CPython and torch do: exact remainder first, then the quotient is rounded."""
    exact = cx.elementwise("div", cx.elementwise("sub", a, rest), b)
    exact = cx.select(crosses, cx.elementwise("sub", exact, 1.0), exact)
    down = cx.elementwise("floor", exact)
    up = cx.elementwise("gt", cx.elementwise("sub", exact, down), 0.5)
    whole = cx.select(up, cx.elementwise("add", down, 1.0), down)
    plain = cx.elementwise("div", a, b)
    zero = cx.elementwise("mul", plain, 0.0)
    whole = cx.select(cx.elementwise("eq", exact, 0.0), zero, whole)
    return cx.select(cx.elementwise("eq", b, 0.0), plain, whole)


@lowers("fmod.Tensor", "fmod.Scalar", "prims.fmod.default")
def _fmod(cx: Context, x: Any, y: Any) -> Node:
    return cx.elementwise("rem", x, nonzero(cx, y), dtype=cx.want.dtype)


@lowers(
    "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "prims.remainder.default"
)
def _remainder(cx: Context, x: Any, y: Any) -> Node:
    nodes, _ = cx.align([x, y], cx.want.dtype)
    rest = cx.elementwise("rem", nodes[0], nonzero(cx, nodes[1]))
    if rest.dtype.kind == "u":
        return rest
    wrong = cx.b.and_(
        *cx.align([cx.elementwise("ne", rest, 0), _opposite(cx, rest, nodes[1])], BOOL)[0]
    )
    return cx.select(wrong, cx.elementwise("add", rest, nodes[1]), rest)


@lowers("pow.Tensor_Scalar")
def _pow_scalar(cx: Context, x: Node, exponent: Any) -> Node:
    """Computes powers as eager does: bf16 rounds after each product, f16 once at the end."""
    dtype: DType = cx.want.dtype
    x = cx.cast(x, dtype)
    if exponent == 0:
        return cx.full(1, cx.want)
    if exponent == 1:
        return x
    if exponent in (2, 3) or (dtype.is_float and exponent == -2):
        x = cx.cast(x, F32) if dtype is F16 else x
        power = cx.elementwise("mul", x, x)
        if exponent == 3:
            power = cx.elementwise("mul", power, x)
        return cx.cast(cx.elementwise("div", 1.0, power) if exponent < 0 else power, dtype)
    if dtype.is_float and exponent in (0.5, -0.5, -1):
        return cx.cast(_special_power(cx, cx.cast(x, wide(dtype)), exponent), dtype)
    return cx.elementwise("pow", x, exponent, dtype=dtype)


def _special_power(cx: Context, x: Node, exponent: float) -> Node:
    if exponent == 0.5:
        return cx.elementwise("sqrt", x)
    return cx.elementwise("rsqrt", x) if exponent == -0.5 else cx.elementwise("div", 1.0, x)


def _extremum_without_nan(op: str) -> None:
    @lowers(f"f{op}.default", f"prims.f{op}.default")
    def lower(cx: Context, x: Any, y: Any) -> Node:
        (a, b), shape = cx.align([x, y], cx.want.dtype)
        best = cx.elementwise(op, a, b)
        if not cx.want.dtype.is_float:
            return best
        best = cx.select(cx.elementwise("isnan", b), a, best)
        return cx.broadcast(cx.select(cx.elementwise("isnan", a), b, best), shape)


_extremum_without_nan("max")
_extremum_without_nan("min")


@lowers("copysign.Tensor", "copysign.Scalar")
def _copysign(cx: Context, x: Any, y: Any) -> Node:
    dtype: DType = cx.want.dtype
    if dtype.bits == 16:
        raise NotLowered("copysign of 16-bit floats")
    size = cx.elementwise("abs", cx.scalar(x, dtype))
    (sign, size), _ = cx.align([cx.scalar(y, dtype), size], dtype)
    bits = cx.b.bitcast(sign, type=sign.tensor.with_dtype(DTYPES[f"i{dtype.bits}"]))
    negative = cx.elementwise("lt", bits, 0)
    return cx.select(negative, cx.elementwise("neg", size), size)


@lowers("hypot.default", "prims.hypot.default")
def _hypot(cx: Context, x: Any, y: Any) -> Node:
    out: DType = cx.want.dtype
    shape = cx.shape_of(x, y)
    kind = F32 if out.bits == 16 else out  # round to 16 bits once
    a, b = (cx.broadcast(cx.scalar(v, kind), shape) for v in (x, y))
    return cx.cast(magnitude(cx.b, Pair(a, b)), out)


@lowers("angle.default")
def _angle(cx: Context, x: Node) -> Node:
    need_float(x)
    x = cx.cast(x, cx.want.dtype)
    out = cx.select(cx.elementwise("lt", x, 0.0), math.pi, 0.0, x.dtype)
    return cx.select(cx.elementwise("isnan", x), x, out)


def _logical(name: str, op: str) -> None:
    @lowers(f"logical_{name}.default")
    def lower(cx: Context, x: Node, y: Node) -> Node:
        return cx.elementwise(op, cx.truth(x), cx.truth(y))


def _bitwise(name: str, op: str) -> None:
    full = f"bitwise_{name}"
    overloads = [f"{full}.Tensor", f"{full}.Scalar", f"{full}.Scalar_Tensor"]

    @lowers(*overloads, f"prims.{full}.default")
    def lower(cx: Context, x: Any, y: Any) -> Node:
        return cx.elementwise(op, x, y, dtype=cx.want.dtype)


for _name in ("and", "or", "xor"):
    _logical(_name, _name)
    _bitwise(_name, _name)


def _shift(name: str, op: str, prim: str) -> None:
    overloads = [f"bitwise_{name}.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")]
    dunder = [f"__{name[0]}shift__.{o}" for o in ("Tensor", "Scalar")]

    @lowers(*overloads, *dunder, f"prims.{prim}.default")
    def lower(cx: Context, x: Any, y: Any) -> Node:
        return cx.elementwise(op, x, y, dtype=cx.want.dtype)


_shift("left_shift", "shl", "shift_left")
_shift("right_shift", "shr", "shift_right_arithmetic")


# ---- selections and conversions


@lowers(
    "where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", "prims.where.default"
)
def _where(cx: Context, test: Node, x: Any, y: Any) -> Node:
    return cx.select(cx.truth(test), x, y, cx.want.dtype)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(cx: Context, x: Node, mask: Node, value: Any) -> Node:
    return cx.broadcast(cx.select(mask, value, x, x.dtype), cx.want.shape)


@lowers("threshold.default")
def _threshold(cx: Context, x: Node, threshold: Any, value: Any) -> Node:
    """Selects `value` up to the threshold; the threshold has the element type (f32 for 16 bits)."""
    kind = wide(x.dtype)
    low = cx.elementwise("le", cx.cast(x, kind), cx.scalar(threshold, kind))
    return cx.select(low, value, x, x.dtype)


@lowers("clamp.default", "clamp.Tensor", "hardtanh.default")
def _clamp(cx: Context, x: Node, low: Any = None, high: Any = None) -> Node:
    if cx.name.startswith("hardtanh"):
        low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    dtype: DType = cx.want.dtype
    out = cx.cast(x, dtype)
    if low is not None:
        out = cx.elementwise("max", out, low, dtype=dtype)
    if high is not None:
        out = cx.elementwise("min", out, high, dtype=dtype)
    return out


@lowers("_to_copy.default", "prims.convert_element_type.default", "to.dtype")
def _to_copy(cx: Context, x: Any, dtype: DType | None = None, copy: bool = False) -> Node:
    if not isinstance(x, Node):  # `vmap` promotes numbers this way
        return cx.scalar(x, cx.want.dtype)
    kind = dtype or x.dtype
    x = widened(cx.b, x) if kind is not x.dtype else x
    if kind.kind == "u" and x.dtype.is_float:
        # negative floats wrap in torch, through a signed integer
        x = cx.cast(x, DTYPES["i64"])
    return cx.cast(x, kind)


@lowers("view.dtype", "prims.view_element_type.default")
def _view_dtype(cx: Context, x: Node, dtype: DType) -> Node:
    if dtype.bits != x.dtype.bits:
        raise NotLowered("a view of another width")
    return x if dtype is x.dtype else cx.b.bitcast(x, type=x.tensor.with_dtype(dtype))


@lowers(
    "clone.default", "contiguous.default", "alias.default", "detach.default", "lift_fresh.default",
    "lift_fresh_copy.default", "lift.default", "positive.default", "prims.clone.default",
    "prims.view_of.default", "conj_physical.default", "_conj.default", "resolve_conj.default",
    "resolve_neg.default", "real.default", "alias_copy.default", "detach_copy.default",
    "view_as_real_copy.default", "prims.device_put.default",
)  # fmt: skip
def _same(cx: Context, x: Node, *_: Any, **__: Any) -> Node:
    need_float(x)
    return x


@lowers("copy.default", "prims.copy_to.default")
def _copy(cx: Context, x: Node, source: Node, non_blocking: bool = False) -> Node:
    return cx.broadcast(cx.cast(source, x.dtype), x.shape)


@lowers("_softmax_backward_data.default")
def _softmax_backward(cx: Context, grad: Node, out: Node, dim: int, dtype: DType) -> Node:
    wide = F32 if grad.dtype.bits == 16 else grad.dtype
    grad, out = cx.cast(grad, wide), cx.cast(out, wide)
    axes = cx.axes(dim, grad.tensor.rank)
    total = cx.reduce("sum", cx.elementwise("mul", grad, out), axes)
    centred = cx.elementwise("sub", grad, cx.stretch(total, grad.shape, axes))
    return cx.cast(cx.elementwise("mul", out, centred), dtype)


@lowers("scalar_tensor.default")
def _scalar_tensor(cx: Context, value: Any, dtype: DType | None = None) -> Node:
    if not isinstance(value, bool | int | float | Expr | Node):
        raise NotLowered(f"the number {value!r}")
    return cx.scalar(value, cx.want.dtype)


@lowers("_assert_async.msg", "_assert_async.default", "_functional_assert_async.msg")
def _assert(cx: Context, test: Node, text: str = "assertion failed", *_: Any) -> None:
    cx.promises.append(Promise(cx.truth(cx.reshape(test, ())), "RuntimeError", text))


@lowers("_linalg_check_errors.default")
def _linalg_check(cx: Context, info: Node, name: str, *, is_matrix: bool = False) -> None:
    holds = cx.reduce("and", cx.elementwise("eq", info, 0), range(info.tensor.rank))
    text = f"{name}: the input is singular, not positive definite, or did not converge"
    cx.promises.append(Promise(holds, "LinAlgError", text))
