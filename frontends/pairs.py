"""Complex numbers as two real values: what arithmetic and functions are on the parts.

The parts of all operands have one element type, and one shape or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stack.ir.builder import Builder, constant
from stack.ir.node import Node
from stack.ir.types import DTYPES, F32, F64, DType

C64, C128 = DTYPES["c64"], DTYPES["c128"]
PART = {C64: F32, C128: F64}
WHOLE = {F32: C64, F64: C128}


@dataclass(frozen=True)
class Pair:
    """A complex value: its real and its imaginary part, of one shape."""

    re: Node
    im: Node


def each(b: Builder, op: str, *values: Pair) -> Pair:
    """An op on the real parts, and on the imaginary ones."""
    return Pair(b.op(op, [v.re for v in values]), b.op(op, [v.im for v in values]))


def conjugate(b: Builder, x: Pair) -> Pair:
    return Pair(x.re, b.neg(x.im))


def scaled(b: Builder, op: str, x: Pair, by: Node) -> Pair:
    """`x * by` or `x / by`, by a real number."""
    return Pair(b.op(op, (x.re, by)), b.op(op, (x.im, by)))


def product(b: Builder, x: Pair, y: Pair, of: Callable[[Node, Node], Node] | None = None) -> Pair:
    """A product, of elements or by another function that is linear in both."""
    of = of or b.mul
    re = b.sub(of(x.re, y.re), of(x.im, y.im))
    return Pair(re, b.add(of(x.re, y.im), of(x.im, y.re)))


def quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    """By `y` scaled by its larger part, so that no square overflows."""
    larger = b.max(b.abs(y.re), b.abs(y.im))
    unit = scaled(b, "div", y, larger)
    size = b.add(b.mul(unit.re, unit.re), b.mul(unit.im, unit.im))
    return scaled(b, "div", product(b, x, conjugate(b, unit)), b.mul(size, larger))


def power(b: Builder, x: Pair, count: int) -> Pair:
    """A product of `count` factors, by squaring."""
    if count == 1:
        return x
    half = power(b, x, count // 2)
    square = product(b, half, half)
    return product(b, square, x) if count % 2 else square


def equal(b: Builder, x: Pair, y: Pair) -> Node:
    return b.and_(b.eq(x.re, y.re), b.eq(x.im, y.im))


# ---- lengths and angles


def hypotenuse(b: Builder, x: Node, y: Node) -> Node:
    """The length of `(x, y)`, whose squares may overflow; infinite beside a nan, too."""
    x, y = b.abs(x), b.abs(y)
    is_infinite = b.or_(b.eq(x, math.inf), b.eq(y, math.inf))
    large, small = b.max(x, y), b.min(x, y)
    ratio = b.div(small, large)
    length = b.mul(large, b.sqrt(b.add(b.mul(ratio, ratio), 1.0)))
    finite = b.select(b.eq(small, 0.0), large, length)
    return b.select(is_infinite, constant(math.inf, finite.dtype), finite)


def magnitude(b: Builder, x: Pair) -> Node:
    return hypotenuse(b, x.re, x.im)


def angle(b: Builder, x: Pair) -> Node:
    return b.atan2(x.im, x.re)


def polar(b: Builder, size: Node, turned: Node) -> Pair:
    return Pair(b.mul(size, b.cos(turned)), b.mul(size, b.sin(turned)))


def _times(b: Builder, x: Node, y: Node) -> Node:
    """A product in which 0 and no limit is 0: parts of functions that grow along one axis."""
    made = b.mul(x, y)
    zero = b.select(b.eq(x, 0.0), x, b.select(b.lt(x, 0.0), b.neg(y), y))
    is_open = b.and_(b.ne(made, made), b.or_(b.eq(x, 0.0), b.eq(y, 0.0)))
    return b.select(is_open, zero, made)


def direction(b: Builder, x: Pair) -> Pair:
    """Of length 1; 0 for 0."""
    size = magnitude(b, x)
    return scaled(b, "div", x, b.select(b.eq(size, 0.0), constant(1, size.dtype), size))


# ---- functions


def exp(b: Builder, x: Pair) -> Pair:
    size = b.exp(x.re)
    return Pair(_times(b, size, b.cos(x.im)), _times(b, size, b.sin(x.im)))


def log(b: Builder, x: Pair) -> Pair:
    return Pair(b.log(magnitude(b, x)), angle(b, x))


def sqrt(b: Builder, x: Pair) -> Pair:
    """With a real part of at least 0; that of two equal signs is found without a difference."""
    size = b.add(b.mul(magnitude(b, x), 0.5), b.mul(b.abs(x.re), 0.5))
    far = b.sqrt(size)
    high = b.abs(x.im)
    near = b.select(b.eq(far, 0.0), far, b.div(high, b.mul(far, 2.0)))
    is_infinite = b.eq(high, math.inf)  # whatever the other part is
    far, near = b.select(is_infinite, high, far), b.select(is_infinite, high, near)
    is_right = b.ge(x.re, 0.0)
    im = b.select(is_right, near, far)
    return Pair(b.select(is_right, far, near), b.select(_is_negative(b, x.im), b.neg(im), im))


def _is_negative(b: Builder, x: Node) -> Node:
    """By its sign bit, which -0 has too."""
    return b.lt(b.bitcast(x, type=x.tensor.with_dtype(_INTEGER[x.dtype])), 0)


_INTEGER: dict[DType, DType] = {F32: DTYPES["i32"], F64: DTYPES["i64"]}


def cosh(b: Builder, x: Pair) -> Pair:
    return Pair(b.mul(b.cosh(x.re), b.cos(x.im)), _times(b, b.sinh(x.re), b.sin(x.im)))


def sinh(b: Builder, x: Pair) -> Pair:
    return Pair(_times(b, b.sinh(x.re), b.cos(x.im)), _times(b, b.cosh(x.re), b.sin(x.im)))


def cos(b: Builder, x: Pair) -> Pair:
    """The conjugate of `cosh(im + i re)`."""
    return conjugate(b, cosh(b, Pair(x.im, x.re)))


def sin(b: Builder, x: Pair) -> Pair:
    """`sinh(im + i re)` with its parts exchanged."""
    turned = sinh(b, Pair(x.im, x.re))
    return Pair(turned.im, turned.re)


FUNCTIONS: dict[str, Callable[[Builder, Pair], Pair]] = {
    "exp": exp, "log": log, "sqrt": sqrt, "cosh": cosh, "sinh": sinh, "cos": cos, "sin": sin,
}  # fmt: skip
