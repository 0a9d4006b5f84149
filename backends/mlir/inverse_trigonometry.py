"""Inverse trigonometric functions of f32: an odd polynomial around 0; elsewhere a reduction to it.

An angle above 45 degrees is a right angle minus that of the inverse quotient. An arcsine above 1/2
is a right angle minus twice the arcsine of half the angle (Muller, "Elementary Functions", 2016).
All lanes compute both and select, so there are no branches. Odd functions compute with |x|.
"""

from __future__ import annotations

from math import pi

from .writer import Body

# f(x) = x + x s P(s) with s = x x, lowest power first: Lawson-weighted fits at Chebyshev nodes,
# rounded to f32 one after another
ATAN_P = (-0.333333, 0.19998531, -0.14264043, 0.10951064, -0.083999395, 0.05789356)
ATAN_P += (-0.031110168, 0.010876211, -0.0017845817)
ASIN_P = (0.16666752, 0.074953094, 0.04546915, 0.024184778, 0.042158306)
REST = -4.371139e-08  # pi / 2 minus its f32 value


def atan(b: Body) -> str:
    size = b.op("math.absf", "%x0")
    return _angle(b, size, b.f(1.0))


def atan2(b: Body) -> str:
    y, x = b.op("math.absf", "%x0"), b.op("math.absf", "%x1")
    first = _angle(b, y, x)
    is_left = b.compare("olt", b.op("math.copysign", 1.0, "%x1"), 0.0)  # -0 too
    return b.select(is_left, _from(b, pi, first), first)


def _angle(b: Body, y: str, x: str) -> str:
    """The angle of a point in the first quadrant; 45 degrees for infinities, 0 at the origin."""
    is_steep = b.compare("ogt", y, x)
    less, more = b.select(is_steep, x, y), b.select(is_steep, y, x)
    more = b.select(b.compare("oeq", more, 0.0), 1.0, more)
    q = b.select(b.compare("oeq", less, more), 1.0, b.div(less, more))
    angle = b.odd(q, ATAN_P)
    return b.select(is_steep, _from(b, pi / 2, angle), angle)


def asin(b: Body) -> str:
    is_small, sine, tail = _arcsine(b)
    small = b.add(sine, tail)
    # in two halves of the right angle, because the first difference is exact
    less = b.add(b.sub(pi / 4, b.add(sine, sine)), b.sub(REST, b.add(tail, tail)))
    return b.select(is_small, small, b.add(less, pi / 4))


def acos(b: Body) -> str:
    is_small, sine, tail = _arcsine(b)
    angle = b.add(sine, tail)
    twice = b.add(angle, angle)
    large = b.select(b.compare("olt", "%x0", 0.0), _from(b, pi, twice), twice)
    return b.select(is_small, _from(b, pi / 2, b.op("math.copysign", angle, "%x0")), large)


def _arcsine(b: Body) -> tuple[str, str, str]:
    """Returns the mask of small |x|, a sine s, and arcsin(s) - s, to compute arcsin |x|.

    s is |x| if that is small, else the sine of half the complementary angle.
    """
    size = b.op("math.absf", "%x0")
    is_small = b.compare("olt", size, 0.5)
    half = b.op("math.sqrt", b.fma(size, -0.5, 0.5))
    sine = b.select(is_small, size, half)
    square = b.mul(sine, sine)
    return is_small, sine, b.mul(b.mul(sine, square), b.polynomial(square, ASIN_P))


def _from(b: Body, turn: float, angle: str) -> str:
    """turn - angle, with twice the digits for `turn`, which is pi or pi / 2."""
    return b.add(b.sub(turn, angle), REST * (turn / (pi / 2)))
