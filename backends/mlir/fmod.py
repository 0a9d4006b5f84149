"""fmod for quotients with few digits, in any type: the rounded one is at most one too large."""

from __future__ import annotations

from .writer import Body


def fmod_of_near(b: Body) -> tuple[str, str]:
    """Returns x - n y, with n = trunc(x / y), and a mask of lanes where that is not exact.

    The division rounds the quotient, so that n is exact, or one too large if the quotient was just
    below an integer. In both cases the difference is representable, so the fused multiply-add is
    exact.
    """
    x, y = "%x0", "%x1"
    quotient = b.div(x, y)
    near = b.fma(b.op("arith.negf", b.op("math.trunc", quotient)), y, x)
    # if n is one too large, the result has the wrong sign
    other = b.compare("olt", b.mul(b.op("math.copysign", 1.0, near), x), 0.0)
    back = b.add(near, b.op("math.copysign", y, x))
    is_one_more = b.do(f"arith.andi {other}, {b.compare('one', near, 0.0)} : {b.mask}")
    result = b.op("math.copysign", b.select(is_one_more, back, near), x)
    digits = 22 if b.element == "f32" else 51
    far = b.compare("uge", b.op("math.absf", quotient), 2.0**digits)
    endless = b.compare("uge", b.op("math.absf", y), float("inf"))
    return result, b.do(f"arith.ori {far}, {endless} : {b.mask}")
