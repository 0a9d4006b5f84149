"""Trigonometric functions of f32, for angles below 1e8: reduces by multiples of a right angle.

The reduction in f64 keeps every bit with two constants (Cody and Waite). Each function returns its
value, and a mask of the lanes that are too large, or nan.
"""

from __future__ import annotations

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
