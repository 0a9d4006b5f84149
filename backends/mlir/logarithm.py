"""Logarithms of f32: the exponent's, plus a polynomial of the significand around 1."""

from __future__ import annotations

from collections.abc import Callable

from .writer import Body

LN2 = 0.6931471805599453
INF, NAN = float("inf"), float("nan")

# Coefficients, lowest power first: a Lawson-weighted fit, rounded to f32 one after the other.
LOG_P = (0.333333135, -0.250000089, 0.200020716, -0.166679904, 0.142203629, -0.124062084)
LOG_P += (0.118834712, -0.116701826, 0.0674953908)


def _log_parts(b: Body, x: str, more: float | str = 0.0) -> tuple[str, str]:
    """e and log(m) + more with x = m 2^e, m around 1; x positive and finite."""
    tiny = b.compare("olt", x, 1.17549435e-38)
    scaled = b.select(tiny, b.mul(x, 8388608.0), x)
    shifted = b.iop("subi", b.to_bits(scaled), 0x3F3504F3)  # sqrt(1/2)
    exponent = b.iop("shrsi", shifted, 23)
    e = b.do(f"arith.sitofp {exponent} : {b.bits} to {b.type}")
    e = b.sub(e, b.select(tiny, 23.0, 0.0))
    m = b.from_bits(b.iop("addi", b.iop("andi", shifted, 0x7FFFFF), 0x3F3504F3))
    f = b.sub(m, 1.0)
    square = b.mul(f, f)
    tail = b.fma(b.mul(f, square), b.polynomial(f, LOG_P), b.mul(square, -0.5))
    return e, b.add(f, tail if more == 0.0 else b.add(tail, more))


def _log_ends(b: Body, x: str, inside: str) -> str:
    above = b.select(b.compare("olt", x, INF), inside, x)  # inf and nan stay
    zero = b.select(b.compare("oeq", x, 0.0), -INF, above)
    return b.select(b.compare("olt", x, 0.0), NAN, zero)


def log_of(b: Body, x: str, more: float | str = 0.0) -> str:
    """log(x) + more, of which more is small: what rounding x lost, over x."""
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
