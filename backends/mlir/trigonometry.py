"""Trigonometric functions of f32, for angles below 1e8: reduces by multiples of a right angle.

The reduction in f64 keeps every bit with two constants (Cody and Waite). Each function returns its
value, and a mask of the lanes that are too large, or nan.

Inverse functions: an odd polynomial around 0, elsewhere a reduction to it. An angle above 45
degrees is a right angle minus that of the inverse quotient. An arcsine above 1/2 is a right angle
minus twice the arcsine of half the angle (Muller, "Elementary Functions", 2016). All lanes compute
both and select, so there are no branches. Odd functions compute with |x|.
"""

from __future__ import annotations

from math import pi

from .writer import Body

# coefficients, lowest power first: Lawson-weighted fits, rounded to f32 one after another
SIN_P = (-0.166666672, 0.00833338033, -0.000198535126, 2.83754275e-06)
COS_P = (0.0416666456, -0.00138873013, 2.44306684e-05)
TAN_P = (0.3333335, 0.13332675, 0.054058902, 0.021286337, 0.010826924, 9.9133526e-05, 0.004372152)
FAR = 1e8


def sin(b: Body) -> tuple[str, str]:
    return _wave(b, 0)


def cos(b: Body) -> tuple[str, str]:
    return _wave(b, 1)


def _wave(b: Body, turn: int) -> tuple[str, str]:
    r, q = _reduced(b)
    q = b.iop("addi", q, turn) if turn else q
    r = b.narrow(r)
    s = b.mul(r, r)
    sine = b.fma(b.mul(r, s), b.polynomial(s, SIN_P), r)
    sine = b.op("math.copysign", sine, r)  # for the sign of a zero
    cosine = b.fma(b.mul(s, s), b.polynomial(s, COS_P), b.fma(s, -0.5, 1.0))
    sign = b.iop("shli", b.iop("andi", q, 2), 30)
    value = b.to_bits(b.select(_is_odd(b, q), cosine, sine))
    return b.from_bits(b.iop("xori", value, sign)), _is_far(b)


def tan(b: Body) -> tuple[str, str]:
    wide, q = _reduced(b)
    r = b.narrow(wide)
    lost = b.narrow(b.of_f64().sub(wide, b.wide(r)))
    s = b.mul(r, r)
    tail = b.mul(b.mul(r, s), b.polynomial(s, TAN_P))
    slope = b.fma(b.add(r, tail), b.add(r, tail), 1.0)
    tail = b.fma(lost, slope, tail)
    t = b.op("math.copysign", b.add(r, tail), r)
    # -1 / (t + rounding error of t)
    lost = b.sub(tail, b.sub(t, r))
    turned = b.div(-1.0, t)
    error = b.fma(turned, lost, b.fma(turned, t, 1.0))
    turned = b.fma(turned, error, turned)
    return b.select(_is_odd(b, q), turned, t), _is_far(b)


def _reduced(b: Body) -> tuple[str, str]:
    """The remainder in f64, at most half a right angle, and the number of right angles."""
    w = b.of_f64()
    x, magic = b.wide("%x0"), 6755399441055744.0
    z = w.fma(x, 0.6366197723675814, magic)
    n = w.sub(z, magic)
    r = w.fma(n, -6.123233995736766e-17, w.fma(n, -1.5707963267948966, x))
    return r, b.do(f"arith.trunci {w.to_bits(z)} : {w.bits} to {b.bits}")


def _is_odd(b: Body, q: str) -> str:
    return b.do(f"arith.trunci {q} : {b.bits} to {b.mask}")


def _is_far(b: Body) -> str:
    return b.compare("uge", b.op("math.absf", "%x0"), FAR)


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
