"""fmod where the quotient has few digits, in any type: it is then at most one too large."""

from __future__ import annotations

from .writer import Body


def fmod_of_near(b: Body) -> tuple[str, str]:
    """x - n y with n = x / y without its fraction, and a mask of lanes where that is not it.

    n is an integer that a division rounds to: the exact quotient, or one more where that was just
    below. Both make a difference that the type has, so that a fused multiply-add rounds nothing.
    """
    x, y = "%x0", "%x1"
    quotient = b.div(x, y)
    near = b.fma(b.op("arith.negf", b.op("math.trunc", quotient)), y, x)
    # one too many leaves the sign of the divisor's other side
    other = b.compare("olt", b.mul(b.op("math.copysign", 1.0, near), x), 0.0)
    back = b.add(near, b.op("math.copysign", y, x))
    is_one_more = b.do(f"arith.andi {other}, {b.compare('one', near, 0.0)} : {b.mask}")
    result = b.op("math.copysign", b.select(is_one_more, back, near), x)
    digits = 22 if b.element == "f32" else 51
    far = b.compare("uge", b.op("math.absf", quotient), 2.0**digits)
    endless = b.compare("uge", b.op("math.absf", y), float("inf"))
    return result, b.do(f"arith.ori {far}, {endless} : {b.mask}")
