"""Complex arithmetic and functions on pairs of real values: a part of the wing `complex`.

The parts of all operands have the same element type, and equal or scalar shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stack.frontends.arithmetic.complex_pairs import Pair, by_size, has_infinite_part, magnitude
from stack.ir.builder import Builder, constant
from stack.ir.node import Node
from stack.ir.types import DTYPES, F32, F64, DType


def each(b: Builder, op: str, *values: Pair) -> Pair:
    """Applies an op to the real parts and to the imaginary parts."""
    return Pair(b.op(op, [v.re for v in values]), b.op(op, [v.im for v in values]))


def conjugate(b: Builder, x: Pair) -> Pair:
    return Pair(x.re, b.neg(x.im))


def scaled(b: Builder, op: str, x: Pair, by: Node) -> Pair:
    """Returns `x * by` or `x / by` for a real `by`."""
    return Pair(b.op(op, (x.re, by)), b.op(op, (x.im, by)))


def product(b: Builder, x: Pair, y: Pair, of: Callable[[Node, Node], Node] | None = None) -> Pair:
    """Returns a product; `of` may be another bilinear function than the elementwise product."""
    of = of or b.mul
    re = b.sub(of(x.re, y.re), of(x.im, y.im))
    return Pair(re, b.add(of(x.re, y.im), of(x.im, y.re)))


def quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    """Returns `x / y` as NumPy and torch do: for `y` 0, parts of `x` divided by `abs(0)`."""
    above, below = _smith(b, x, y)
    found = scaled(b, "mul", above, b.div(constant(1.0, below.dtype), below))
    return _select(b, _is_zero(b, y), scaled(b, "div", x, b.abs(y.re)), found)


def c_quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    """Returns `x / y` as annex G of C11 and XLA do.

    If both parts are nan: for `y` 0, the parts of `x` are divided by that 0; if `x` or `y` is
    infinite, only the infinite parts count.
    """
    found = scaled(b, "div", *_smith(b, x, y))
    is_nan = b.and_(b.ne(found.re, found.re), b.ne(found.im, found.im))
    limit, zero = (constant(v, found.re.dtype) for v in (math.inf, 0.0))
    far = product(b, _infinite_parts(b, x), conjugate(b, y))
    near = product(b, x, conjugate(b, _infinite_parts(b, y)))
    is_far = b.and_(is_nan, b.and_(has_infinite_part(b, x), _is_finite(b, y)))
    is_near = b.and_(is_nan, b.and_(_is_finite(b, x), has_infinite_part(b, y)))
    found = _select(b, is_far, scaled(b, "mul", far, limit), found)
    found = _select(b, is_near, scaled(b, "mul", near, zero), found)
    return _select(b, _is_zero(b, y), scaled(b, "div", x, y.re), found)


def _smith(b: Builder, x: Pair, y: Pair) -> tuple[Pair, Node]:
    """Returns `x / y` as a complex numerator and a real denominator, by Smith's algorithm.

    It divides by the ratio of the parts of `y`, so that no square overflows.
    """
    is_wide = b.ge(b.abs(y.re), b.abs(y.im))
    large, small = b.select(is_wide, y.re, y.im), b.select(is_wide, y.im, y.re)
    ratio = b.div(small, large)
    wide = Pair(b.add(x.re, b.mul(x.im, ratio)), b.sub(x.im, b.mul(x.re, ratio)))
    high = Pair(b.add(b.mul(x.re, ratio), x.im), b.sub(b.mul(x.im, ratio), x.re))
    return _select(b, is_wide, wide, high), b.add(large, b.mul(small, ratio))


def _select(b: Builder, where: Node, x: Pair, y: Pair) -> Pair:
    return Pair(b.select(where, x.re, y.re), b.select(where, x.im, y.im))


def _is_zero(b: Builder, x: Pair) -> Node:
    return b.and_(b.eq(x.re, 0.0), b.eq(x.im, 0.0))


def _is_finite(b: Builder, x: Pair) -> Node:
    return b.and_(b.lt(b.abs(x.re), math.inf), b.lt(b.abs(x.im), math.inf))


def _infinite_parts(b: Builder, x: Pair) -> Pair:
    """Returns signed 1 for infinite parts and signed 0 for others; unsigned 0 for nan."""

    def one(part: Node) -> Node:
        zero = b.select(b.ne(part, part), constant(0.0, part.dtype), b.mul(part, 0.0))
        unit = b.select(b.lt(part, 0.0), constant(-1.0, part.dtype), constant(1.0, part.dtype))
        return b.select(b.eq(b.abs(part), math.inf), unit, zero)

    return Pair(one(x.re), one(x.im))


def power(b: Builder, x: Pair, count: int) -> Pair:
    """Returns the power with exponent `count`, by repeated squaring."""
    if count == 1:
        return x
    half = power(b, x, count // 2)
    square = product(b, half, half)
    return product(b, square, x) if count % 2 else square


def equal(b: Builder, x: Pair, y: Pair) -> Node:
    return b.and_(b.eq(x.re, y.re), b.eq(x.im, y.im))


# ---- lengths and angles


def angle(b: Builder, x: Pair) -> Node:
    return b.atan2(x.im, x.re)


def polar(b: Builder, size: Node, turned: Node) -> Pair:
    return Pair(b.mul(size, b.cos(turned)), b.mul(size, b.sin(turned)))


def _times(b: Builder, x: Node, y: Node) -> Node:
    """Returns a product where 0 times infinity or nan is 0."""
    made = b.mul(x, y)
    zero = b.select(b.eq(x, 0.0), x, b.select(b.lt(x, 0.0), b.neg(y), y))
    is_open = b.and_(b.ne(made, made), b.or_(b.eq(x, 0.0), b.eq(y, 0.0)))
    return b.select(is_open, zero, made)


def direction(b: Builder, x: Pair) -> Pair:
    """Returns `x / abs(x)`; 0 for 0."""
    size = magnitude(b, x)
    return scaled(b, "div", x, b.select(b.eq(size, 0.0), constant(1, size.dtype), size))


# ---- functions


def exp(b: Builder, x: Pair) -> Pair:
    size = b.exp(x.re)
    return Pair(_times(b, size, b.cos(x.im)), _times(b, size, b.sin(x.im)))


def log(b: Builder, x: Pair) -> Pair:
    """Returns the logarithm, also if the absolute value overflows."""
    large, ratio = by_size(b, x)
    size = b.add(b.log(large), b.mul(b.log1p(b.mul(ratio, ratio)), 0.5))
    return Pair(size, angle(b, x))


def sqrt(b: Builder, x: Pair) -> Pair:
    """Returns the root with a non-negative real part, also if the absolute value overflows.

    Avoids cancellation: no difference of close numbers is computed.
    """
    large, ratio = by_size(b, x)
    wide, high = b.abs(x.re), b.abs(x.im)
    share = b.select(b.ge(wide, high), constant(1.0, wide.dtype), ratio)  # of the real part
    whole = b.add(b.sqrt(b.add(b.mul(ratio, ratio), 1.0)), share)
    far = b.mul(b.sqrt(large), b.sqrt(b.mul(whole, 0.5)))
    near = b.select(b.eq(far, 0.0), far, b.div(high, b.mul(far, 2.0)))
    is_infinite = b.eq(high, math.inf)  # also if the other part is nan
    far, near = b.select(is_infinite, high, far), b.select(is_infinite, high, near)
    is_right = b.ge(x.re, 0.0)
    im = b.select(is_right, near, far)
    return Pair(b.select(is_right, far, near), b.select(_is_negative(b, x.im), b.neg(im), im))


def _is_negative(b: Builder, x: Node) -> Node:
    """True if the sign bit is set, also for -0."""
    return b.lt(b.bitcast(x, type=x.tensor.with_dtype(_INTEGER[x.dtype])), 0)


_INTEGER: dict[DType, DType] = {F32: DTYPES["i32"], F64: DTYPES["i64"]}


def cosh(b: Builder, x: Pair) -> Pair:
    return Pair(b.mul(b.cosh(x.re), b.cos(x.im)), _times(b, b.sinh(x.re), b.sin(x.im)))


def sinh(b: Builder, x: Pair) -> Pair:
    return Pair(_times(b, b.sinh(x.re), b.cos(x.im)), _times(b, b.cosh(x.re), b.sin(x.im)))


def cos(b: Builder, x: Pair) -> Pair:
    """Computes the conjugate of `cosh(im + i re)`."""
    return conjugate(b, cosh(b, Pair(x.im, x.re)))


def sin(b: Builder, x: Pair) -> Pair:
    """Computes `sinh(im + i re)` with exchanged parts."""
    turned = sinh(b, Pair(x.im, x.re))
    return Pair(turned.im, turned.re)


FUNCTIONS: dict[str, Callable[[Builder, Pair], Pair]] = {
    "exp": exp, "log": log, "sqrt": sqrt, "cosh": cosh, "sinh": sinh, "cos": cos, "sin": sin,
}  # fmt: skip
