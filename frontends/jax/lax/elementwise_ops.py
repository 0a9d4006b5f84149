"""Lowerings of elementwise primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.frontends.arithmetic.erfc import erfc
from stack.frontends.arithmetic.storage_types import is_storage, widened
from stack.frontends.jax.lax.data_movement import broadcast
from stack.frontends.jax.lax.lowering import NoLowering, Site, dtype_of, lower
from stack.frontends.jax.lax.reduce import total_order
from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.types import BOOL, DTYPES, F32, DType

_SAME = {name: name for name in (
    "neg", "abs", "sign", "not", "floor", "ceil", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log",
    "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "erf", "lgamma", "add", "sub", "mul", "div", "rem", "pow", "atan2", "max", "min",
    "and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge",
)} | {
    "is_finite": "isfinite", "logistic": "sigmoid", "erf_inv": "erfinv", "add_any": "add",
}  # fmt: skip


def aligned(s: Site, args: Sequence[Node]) -> list[Node]:
    """Broadcasts operands to the shape of the result, as JAX does for axes of size 1."""
    return [
        a if a.shape in ((), s.type.shape)
        else broadcast(s, a, s.type.with_dtype(a.dtype), range(s.type.rank))
        for a in args
    ]  # fmt: skip


def _plain(op: str) -> Any:
    def rule(s: Site, *args: Node, **_: Any) -> Node:
        if any(a.dtype != args[0].dtype for a in args):
            # pow with integer exponents, mul with an out_dtype
            args = tuple(s.cast(a, s.type.dtype) for a in args)
        return s.b.op(op, aligned(s, args))

    return rule


for _name, _op in _SAME.items():
    lower(_name)(_plain(_op))


@lower("stop_gradient", "copy", "copy_p", "optimization_barrier", "name", "device_put", "pvary",
       "layout_constraint", "pin", "unpin", "tie", "pbroadcast", "mesh_cast", "random_clone",
       "reduced_vary_cast_p", "vary_unreduced_cast_p")  # fmt: skip
def _identity(s: Site, *args: Node, **_: Any) -> tuple[Node, ...]:
    return args[-len(s.types) :]


_identity.handles_words = True


@lower("square")
def _square(s: Site, x: Node, **_: Any) -> Node:
    return s.b.mul(x, x)


@lower("one_minus_square")  # from JAX 0.11 on: the derivative of tanh
def _one_minus_square(s: Site, x: Node, **_: Any) -> Node:
    one = s.fill(1, s.type)
    return s.b.mul(s.b.add(one, x), s.b.sub(one, x))


@lower("integer_pow")
def _integer_pow(s: Site, x: Node, *, y: int, **_: Any) -> Node:
    if y == 0:
        return s.fill(1, s.type)
    power = _power(s, x, abs(y))
    return power if y > 0 else s.b.div(constant(1, x.dtype), power)


def _power(s: Site, x: Node, y: int) -> Node:
    """Computes a power by repeated squaring, as XLA does."""
    out: Node | None = None
    while True:
        if y & 1:
            out = x if out is None else s.b.mul(out, x)
        y >>= 1
        if not y:
            assert out is not None
            return out
        x = s.b.mul(x, x)


@lower("digamma")
def _digamma(s: Site, x: Node, **_: Any) -> Node:
    # at the pole JAX returns nan, the IR minus infinity
    return s.b.select(s.b.eq(x, 0.0), constant(np.nan, x.dtype), s.b.digamma(x))


@lower("cbrt")
def _cbrt(s: Site, x: Node, **_: Any) -> Node:
    # one Newton step makes the power fully precise; not for 0 and inf
    b = s.b
    size = b.abs(x)
    root = b.pow(size, 1 / 3)
    better = b.sub(root, b.div(b.sub(root, b.div(size, b.mul(root, root))), 3.0))
    plain = b.and_(b.isfinite(size), b.gt(size, 0.0))
    signed = b.mul(b.sign(x), b.select(plain, better, root))
    return b.select(b.eq(x, 0.0), x, signed)


@lower("round")
def _round(s: Site, x: Node, *, rounding_method: Any, **_: Any) -> Node:
    if rounding_method.name == "TO_NEAREST_EVEN":
        return s.b.round(x)
    whole = s.b.trunc(x)
    far = s.b.ge(s.b.abs(s.b.sub(x, whole)), 0.5)
    return s.b.select(far, s.b.add(whole, s.b.sign(x)), whole)


@lower("clamp")
def _clamp(s: Site, low: Node, x: Node, high: Node, **_: Any) -> Node:
    low, x, high = aligned(s, (low, x, high))
    return s.b.min(s.b.max(x, low), high)


@lower("select_n")
def _select_n(s: Site, which: Node, *cases: Node, **_: Any) -> Node:
    if len(cases) == 1:
        return cases[0]
    if which.dtype.kind == "b":
        return _masked(s, which, cases[1], cases[0])
    out = cases[-1]
    for i in range(len(cases) - 2, -1, -1):
        out = _masked(s, s.b.le(which, i), cases[i], out)
    return out


def _masked(s: Site, which: Node, yes: Node, no: Node) -> Node:
    if 0 < which.tensor.rank < s.type.rank:
        # random keys: the condition has no axis for the words
        axes = tuple(range(which.tensor.rank))
        which = s.b.broadcast(which, axes=axes, type=s.type.with_dtype(which.dtype))
    return s.b.select(*aligned(s, (which, yes, no)))


_select_n.handles_words = True


@lower("convert_element_type")
def _convert(s: Site, x: Node, *, new_dtype: Any, **_: Any) -> Node:
    return converted(s, x, dtype_of(new_dtype))


def converted(s: Site, x: Node, dtype: DType) -> Node:
    """Casts `x`. Float to integer follows XLA: truncated and clamped to the range; 0 for nan."""
    if dtype != x.dtype:
        x = widened(s.b, x)
    if not x.dtype.is_float or dtype.is_float or dtype is BOOL or is_storage(dtype):
        return s.cast(x, dtype)
    b = s.b
    wide = s.cast(x, F32) if x.dtype.bits == 16 else x
    number = b.select(b.isnan(wide), 0.0, wide)
    least, most = (int(limit) for limit in (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max))
    above_least = b.max(number, float(least))
    if int(np.dtype(wide.dtype.numpy).type(most)) == most:
        return s.cast(b.min(above_least, float(most)), dtype)
    # the largest integer has no float; the next power of two has
    over = b.ge(number, float(most + 1))
    return b.select(over, constant(most, dtype), s.cast(above_least, dtype))


@lower("reduce_precision")
def _reduce_precision(
    s: Site, x: Node, *, exponent_bits: int, mantissa_bits: int, **_: Any
) -> Node:
    for name, sizes in {"bf16": (8, 7), "f16": (5, 10), "f32": (8, 23), "f64": (11, 52)}.items():
        if sizes == (exponent_bits, mantissa_bits):
            return s.cast(s.cast(x, DTYPES[name]), x.dtype)
    raise NoLowering("a float format that is not an element type")


# ---- bits


_SHIFTS = {"shift_left": "shl", "shift_right_logical": "shr", "shift_right_arithmetic": "shr"}


def _shift(name: str, op: str) -> Any:
    def rule(s: Site, x: Node, by: Node, **_: Any) -> Node:
        x, by = aligned(s, (x, by))
        b, bits = s.b, x.dtype.bits
        # the IR's shr depends on the signedness of the type, JAX's on the name of the op
        signed = name != "shift_right_logical"
        kind = x.dtype if name == "shift_left" else DTYPES[("i" if signed else "u") + str(bits)]
        amount = _bitcast(s, by, kind)
        value = _bitcast(s, x, kind)
        if _in_range(by, bits):
            return _bitcast(s, b.op(op, (value, amount)), x.dtype)
        # jax defines shifts by the bit width or more
        over = b.ge(_bitcast(s, by, DTYPES[f"u{bits}"]), bits)
        if name == "shift_right_arithmetic":
            amount = b.select(over, constant(bits - 1, kind), amount)
            return _bitcast(s, b.op(op, (value, amount)), x.dtype)
        shifted = b.op(op, (value, b.select(over, constant(0, kind), amount)))
        return _bitcast(s, b.select(over, constant(0, kind), shifted), x.dtype)

    return rule


for _name, _op in _SHIFTS.items():
    lower(_name)(_shift(_name, _op))


def _in_range(by: Node, bits: int) -> bool:
    while by.op == "broadcast":
        by = by.args[0]
    if by.op != "const":
        return False
    array = by.attrs["value"].array
    return bool(((array >= 0) & (array < bits)).all())


def _bitcast(s: Site, x: Node, dtype: Any) -> Node:
    return x if x.dtype == dtype else s.b.bitcast(x, type=x.tensor.with_dtype(dtype))


@lower("bitcast_convert_type")
def _bitcast_convert(s: Site, x: Node, **_: Any) -> Node:
    target = s.type.dtype
    if target.bits == x.dtype.bits:
        return _bitcast(s, x, target)
    if target.kind == "c" or x.dtype.kind == "c":
        raise NoLowering("parts of a complex number")
    narrow, wide = sorted((target, x.dtype), key=lambda d: d.bits)
    words = DTYPES[f"u{wide.bits}"]
    parts = wide.bits // narrow.bits
    if target is narrow:
        shape = s.type.with_dtype(words)
        spread = s.b.broadcast(_bitcast(s, x, words), axes=tuple(range(x.tensor.rank)), type=shape)
        place = s.b.iota(axis=shape.rank - 1, type=shape)
        part = s.b.shr(spread, s.b.mul(place, narrow.bits))
        return _bitcast(s, s.cast(part, DTYPES[f"u{narrow.bits}"]), target)
    whole = s.cast(_bitcast(s, x, DTYPES[f"u{narrow.bits}"]), words)
    place = s.b.iota(axis=x.tensor.rank - 1, type=whole.tensor)
    shifted = s.b.shl(whole, s.b.mul(place, narrow.bits))
    assert parts == x.shape[-1]
    return _bitcast(s, s.b.reduce(shifted, kind="or", axes=(x.tensor.rank - 1,)), target)


@lower("population_count")
def _population_count(s: Site, x: Node, **_: Any) -> Node:
    """Adds neighbouring groups of bits: pairs, fours, bytes, ..."""
    b, bits = s.b, x.dtype.bits
    kind = DTYPES[f"u{bits}"]
    total = _bitcast(s, x, kind)
    width = 1
    while width < bits:
        mask = sum(((1 << width) - 1) << at for at in range(0, bits, 2 * width))
        high = b.and_(b.shr(total, width), mask)
        total = b.add(b.and_(total, mask), high)
        width *= 2
    return _bitcast(s, total, x.dtype)


@lower("mulhi")
def _mulhi(s: Site, x: Node, y: Node, **_: Any) -> Node:
    bits = x.dtype.bits
    if bits > 32:
        raise NoLowering("needs 128-bit integers")
    x, y = aligned(s, (x, y))
    wide = DTYPES[f"{x.dtype.kind}{2 * bits}"]
    product = s.b.mul(s.cast(x, wide), s.cast(y, wide))
    return s.cast(s.b.shr(product, bits), x.dtype)


@lower("lt_to", "le_to", "eq_to")
def _total_order(s: Site, x: Node, y: Node, **_: Any) -> Node:
    x, y = aligned(s, (total_order(s, x), total_order(s, y)))
    return s.b.op(s.eqn.primitive.name.removesuffix("_to"), (x, y))


@lower("erfc")
def _erfc(s: Site, x: Node, **_: Any) -> Node:
    wide = F32 if x.dtype.bits < 32 else x.dtype
    return s.cast(erfc(s.b, s.cast(x, wide)), x.dtype)


@lower("nextafter")
def _nextafter(s: Site, x: Node, y: Node, **_: Any) -> Node:
    """Adds one step in the order of bit patterns, which is the order of floats away from zero."""
    if x.dtype.bits == 16:
        raise NoLowering("only the float types whose patterns are native integers")
    x, y = aligned(s, (x, y))
    b, kind = s.b, DTYPES[f"i{x.dtype.bits}"]
    bits = _bitcast(s, x, kind)
    away = b.eq(b.lt(y, x), b.lt(x, 0.0))
    step = b.select(away, constant(1, kind), constant(-1, kind))
    stepped = _bitcast(s, b.add(bits, step), x.dtype)
    tiny = constant(np.finfo(x.dtype.numpy).smallest_subnormal, x.dtype)
    stepped = b.select(b.eq(x, 0.0), b.select(b.lt(y, 0.0), b.neg(tiny), tiny), stepped)
    stepped = b.select(b.eq(x, y), y, stepped)
    return b.select(b.or_(b.isnan(x), b.isnan(y)), b.add(x, y), stepped)


@lower("dim_as_value")
def _dim_as_value(s: Site, *, dim: Any, **_: Any) -> Node:
    return s.b.size_of(s.importer.shared.dims.dim(dim), s.type.dtype)


@lower("dimension_size")
def _dimension_size(s: Site, x: Node, *, dimension: int, **_: Any) -> Node:
    return s.b.size_of(x.shape[dimension], s.type.dtype)
