"""Logarithms: the exponent's, plus a polynomial of the significand around 1."""

from __future__ import annotations

from collections.abc import Callable

from .writer import Body, vector

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
    tail = b.by_type(_tail, _tail_f64)(b, f)
    return e, b.add(f, tail if more == 0.0 else b.add(tail, more))


def _tail(b: Body, f: str) -> str:
    """log(1 + f) - f."""
    square = b.mul(f, f)
    return b.fma(b.mul(f, square), b.polynomial(f, LOG_P), b.mul(square, -0.5))


def _tail_f64(b: Body, f: str) -> str:
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
