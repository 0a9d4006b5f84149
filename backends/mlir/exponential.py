"""Exponentials: a power of two, by shifting bits, times a polynomial of the remainder. Logarithms:
the exponent's, plus a polynomial of the significand around 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .avx512 import above_floor, scaled
from .writer import MAGIC, Body, vector

LN2 = 0.6931471805599453
INF, NAN = float("inf"), float("nan")

# Coefficients, lowest power first. For f32, of (log(1 + f) - f + f f / 2) / (f f f): a
# Lawson-weighted fit, rounded one after another.
LOG_P = (0.333333135, -0.250000089, 0.200020716, -0.166679904, 0.142203629, -0.124062084)
LOG_P += (0.118834712, -0.116701826, 0.0674953908)
# for f64, of (2 atanh(s) - 2 s) / (s s s), s = f / (2 + f): interpolated at Chebyshev nodes
LOG_P_F64 = (0.666666666666667, 0.3999999999989938, 0.28571428626031065, 0.22222211125722807)
LOG_P_F64 += (0.18182889786191203, 0.15331699633539508, 0.14616721179907316)


def _log_parts(b: Body, x: str, more: float | str = 0.0) -> tuple[str, str]:
    """Returns e and log(m) + more, with x = m 2^e and m around 1, for positive finite x."""
    digits, root = b.by_type((23, 0x3F3504F3), (52, 0x3FE6A09E667F3BCD))  # sqrt(1/2)
    tiny = b.compare("olt", x, b.by_type(2.0**-126, 2.0**-1022))
    scaled = b.select(tiny, b.mul(x, 2.0**digits), x)
    shifted = b.iop("subi", b.to_bits(scaled), root)
    exponent, bits = b.iop("shrsi", shifted, digits), b.bits
    if b.element == "f64":  # more CPUs convert i32
        bits = vector("i32", b.lanes)
        exponent = b.do(f"arith.trunci {exponent} : {b.bits} to {bits}")
    e = b.do(f"arith.sitofp {exponent} : {bits} to {b.type}")
    e = b.sub(e, b.select(tiny, float(digits), 0.0))
    m = b.from_bits(b.iop("addi", b.iop("andi", shifted, (1 << digits) - 1), root))
    f = b.sub(m, 1.0)
    tail = b.by_type(_log_tail, _log_tail_f64)(b, f)
    return e, b.add(f, tail if more == 0.0 else b.add(tail, more))


def _log_tail(b: Body, f: str) -> str:
    """log(1 + f) - f."""
    square = b.mul(f, f)
    return b.fma(b.mul(f, square), b.polynomial(f, LOG_P), b.mul(square, -0.5))


def _log_tail_f64(b: Body, f: str) -> str:
    s = b.div(f, b.add(f, 2.0))  # 2 s is f - s f
    z = b.mul(s, s)
    return b.mul(s, b.sub(b.mul(z, b.polynomial(z, LOG_P_F64)), f))


def _log_ends(b: Body, x: str, inside: str) -> str:
    above = b.select(b.compare("olt", x, INF), inside, x)  # inf and nan are unchanged
    zero = b.select(b.compare("oeq", x, 0.0), -INF, above)
    return b.select(b.compare("olt", x, 0.0), NAN, zero)


def log_of(b: Body, x: str, more: float | str = 0.0) -> str:
    """log(x) + more, for a small `more`, such as the relative rounding error of x."""
    e, log_m = _log_parts(b, x, more)
    return _log_ends(b, x, b.fma(e, LN2, log_m))


def log_base(log_of_e: float, log_of_2: float) -> Callable[[Body], str]:
    def write(b: Body) -> str:
        e, log_m = _log_parts(b, "%x0")
        inside = b.fma(log_m, log_of_e, e if log_of_2 == 1.0 else b.mul(e, log_of_2))
        return _log_ends(b, "%x0", inside)

    return write


def log1p_of(b: Body, x: str) -> str:
    u = b.add(x, 1.0)
    below = b.sub(x, b.sub(u, 1.0))
    above = b.sub(1.0, b.sub(u, x))
    lost = b.select(b.compare("olt", x, 1.0), below, above)
    return log_of(b, u, b.div(lost, u))


LOG2E = 1.4426950408889634

# Coefficients, lowest power first. For f32: Lawson-weighted fits, rounded one after another.
EXP_Q = (0.5, 0.166665196, 0.0416664034, 0.00836883113, 0.00139405322)
EXPM1_Q = (0.5, 0.166666672, 0.0416664891, 0.00833320804, 0.00139326858, 0.000199442555)
EXP2_Q = (0.693147182, 0.240226507, 0.0555035956, 0.00961806253, 0.00133909844, 0.000154628797)
EXP2_FLOOR_Q = (0.69314706, 0.24022909, 0.055486184, 0.009673775, 0.001248229, 0.00021565972)
# for f64: interpolated at Chebyshev nodes
EXP_Q_F64 = (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326125)
EXP_Q_F64 += (0.001388888888888287, 0.0001984126987485156, 2.480158732789466e-05)
EXP_Q_F64 += (2.755725536098087e-06, 2.7557271127809506e-07, 2.5105233325420758e-08)
EXP_Q_F64 += (2.0915618510554166e-09,)


class _Type(NamedTuple):
    """Constants of a float type: its exponent field, and the range of its exponentials."""

    digits: int
    bias: int
    magic: float
    ln2: tuple[float, float]  # in two parts; products of the first with exponents are exact
    end: float  # exp(x) / 2 is inf from here on
    least: float  # exp(x) is 0 below
    no_more: float  # exp(x) - 1 is -1 below
    exp: tuple[float, ...]
    expm1: tuple[float, ...]


_TYPES = {
    "f32": _Type(
        23, 127, MAGIC, (0.693145752, 1.42860677e-06), 90.0, -105.0, -18.0, EXP_Q, EXPM1_Q
    ),
    "f64": _Type(
        *(52, 1023, 6755399441055744.0, (0.6931471805599453, 2.3190468138462996e-17)),
        *(711.0, -746.0, -40.0, EXP_Q_F64, EXP_Q_F64),
    ),
}


def _times_power(b: Body, p: str, z: str) -> str:
    """Returns p * 2^n, with gradual underflow and overflow, for z = n + the magic number.

    The magic number (`_Type.magic`) is so large that n is the difference of the two bit patterns.
    """
    # two factors with half the exponent each, so that neither leaves the normal range
    t = _TYPES[b.element]
    n = b.iop("subi", b.to_bits(z), b.to_bits(b.f(t.magic)))
    half = b.iop("shrsi", n, 1)
    rest = b.iop("subi", n, half)
    return b.mul(b.mul(p, _power(b, half)), _power(b, rest))


def _power(b: Body, n: str) -> str:
    t = _TYPES[b.element]
    return b.from_bits(b.iop("shli", b.iop("addi", n, t.bias), t.digits))


def _has_scalef(b: Body) -> bool:
    return b.scalef and b.element == "f32" and b.lanes in (4, 8, 16, 32, 64)


def _powers(b: Body, x: str, least: float, near: Callable[[str], tuple[str, str]]) -> str:
    """Returns the exponential that `near` computes; 0 in lanes where x is below `least`.

    `near` returns n + the magic number, and p, of the result p * 2^n.
    """
    if _has_scalef(b):
        z, p = near(x)
        return scaled(b, p, b.sub(z, MAGIC), x, least)
    z, p = near(b.at_least(x, least))
    return _times_power(b, p, z)


def _reduced(b: Body, x: str) -> tuple[str, str]:
    """Returns z = n + magic, and r, with x = n ln 2 + r, |r| <= ln 2 / 2."""
    t = _TYPES[b.element]
    z = b.fma(x, LOG2E, t.magic)
    n = b.sub(z, t.magic)
    return z, b.fma(n, -t.ln2[1], b.fma(n, -t.ln2[0], x))


def _tail(b: Body, x: str, coefficients: tuple[float, ...]) -> tuple[str, str]:
    """Returns n + magic, and t, with exp(x) = (1 + t) 2^n."""
    z, r = _reduced(b, x)
    return z, b.fma(b.mul(r, r), b.polynomial(r, coefficients), r)


def exp_of(b: Body, x: str) -> str:
    t = _TYPES[b.element]

    def near(x: str) -> tuple[str, str]:
        z, tail = _tail(b, b.at_most(x, t.end), t.exp)
        return z, b.add(tail, 1.0)

    return _powers(b, x, t.least, near)


def half_sum(b: Body, x: str, sign: float) -> str:
    """(exp(x) + exp(-x)) / 2, or half the difference, for x >= 0; as precise as one exponential."""
    t = _TYPES[b.element]

    def near(x: str) -> tuple[str, str]:
        z, tail = _tail(b, b.at_most(x, t.end), t.exp)
        most = b.at_most(z, t.magic + 30)  # beyond, the other exponential is negligible
        power = _power(b, b.iop("subi", b.to_bits(b.f(t.magic)), b.to_bits(most)))
        other = b.mul(b.div(power, b.add(tail, 1.0)), b.mul(power, sign))
        return z, b.mul(b.add(b.add(tail, other), 1.0), 0.5)

    return _powers(b, x, 0.0, near)


def expm1_of(b: Body, x: str) -> str:
    t = _TYPES[b.element]
    # half of 2^n, so that the largest n does not overflow too early
    z, tail = _tail(b, b.at_most(b.at_least(x, t.no_more), t.end - 1), t.expm1)
    half = b.from_bits(b.iop("shli", b.iop("addi", b.to_bits(z), t.bias - 1), t.digits))
    return b.mul(b.fma(half, tail, b.sub(half, 0.5)), 2.0)


def exp2(b: Body) -> str:
    """2^x of f32."""
    if _has_scalef(b):  # the instruction takes the floor of n
        r = above_floor(b, "%x0")
        return scaled(b, b.fma(r, b.polynomial(r, EXP2_FLOOR_Q), 1.0), "%x0", "%x0", -151.0)

    def near(x: str) -> tuple[str, str]:
        x = b.at_most(x, 129.0)
        z = b.add(x, MAGIC)
        r = b.sub(x, b.sub(z, MAGIC))
        return z, b.fma(r, b.polynomial(r, EXP2_Q), 1.0)

    return _powers(b, "%x0", -151.0, near)
