"""Hyperbolic functions and, for f32, their inverses; away from 0 by an exponential or logarithm.

Around 0, where differences would lose digits, they use a polynomial. The logarithm of a sum is
corrected for the sum's rounding error (Muller, "Elementary Functions", 2016). Odd functions compute
with |x|.
"""

from __future__ import annotations

from .exponential import LN2, exp_of, half_sum, log1p_of, log_of
from .writer import Body

# f(x) = x + x s P(s) with s = x x; for acosh, x = sqrt(2 s), s = the operand - 1. Lowest power
# first: Lawson-weighted fits at Chebyshev nodes, rounded to f32 one after another.
SINH_P = (0.16666667, 0.0083333105, 0.00019842896, 2.7822132e-06)
TANH_P = (-0.333333254, 0.133330032, -0.0539227128, 0.0215780102, -0.00789591391, 0.00190422707)
ATANH_P = (0.33333302, 0.20002455, 0.14223745, 0.11816767, 0.051589165, 0.17640032)
ASINH_P = (-0.1666666, 0.074997045, -0.044599187, 0.030059874, -0.02098806, 0.013573907)
ASINH_P += (-0.007007027, 0.002389529, -0.00038589755)
ACOSH_P = (-0.08333309, 0.01874505, -0.0055463323, 0.0017883229, -0.00050690526, 8.281769e-05)
# for f64: interpolated at Chebyshev nodes
SINH_P_F64 = (0.16666666666666666, 0.008333333333333299, 0.00019841269841324198)
SINH_P_F64 += (2.7557319191381816e-06, 2.5052117695907823e-08, 1.6057679623801638e-10)
SINH_P_F64 += (7.746178593018828e-13,)
TANH_P_F64 = (-0.33333333333333326, 0.13333333333330483, -0.05396825396547009)
TANH_P_F64 += (0.021869488429414517, -0.008863233408263286, 0.003592103046776906)
TANH_P_F64 += (-0.0014556466795140578, 0.0005890911465294338, -0.00023597002784533772)
TANH_P_F64 += (8.970281998106467e-05, -2.8326601500429895e-05, 5.2384872094830404e-06)
WIDE = 1e6  # beyond, sqrt(x x +- 1) is x, and x x may overflow


def sinh(b: Body) -> str:
    size = b.op("math.absf", "%x0")
    near = b.by_type(SINH_P, SINH_P_F64)
    return _around(b, size, 1.0, near, half_sum(b, size, -1.0))


def cosh(b: Body) -> str:
    return half_sum(b, b.op("math.absf", "%x0"), 1.0)


def tanh(b: Body) -> str:
    size = b.op("math.absf", "%x0")
    part = b.div(2.0, b.add(exp_of(b, b.add(size, size)), 1.0))
    return _around(b, size, 0.7, b.by_type(TANH_P, TANH_P_F64), b.sub(1.0, part))


def atanh(b: Body) -> str:
    size = b.op("math.absf", "%x0")
    ratio = b.div(b.add(size, size), b.sub(1.0, size))
    return _around(b, size, 0.5, ATANH_P, b.mul(log1p_of(b, ratio), 0.5))


def asinh(b: Body) -> str:
    size = b.op("math.absf", "%x0")
    root = b.op("math.sqrt", b.fma(size, size, 1.0))
    return _around(b, size, 1.0, ASINH_P, _log_of_sum(b, size, root))


def acosh(b: Body) -> str:
    above = b.sub("%x0", 1.0)
    root = b.op("math.sqrt", b.add(above, above))
    near = b.fma(b.mul(root, above), b.polynomial(above, ACOSH_P), root)
    other = b.op("math.sqrt", b.fma("%x0", "%x0", -1.0))
    return b.select(b.compare("olt", above, 1.0), near, _log_of_sum(b, "%x0", other))


def _around(b: Body, x: str, end: float, coefficients: tuple[float, ...], far: str) -> str:
    return b.select(b.compare("olt", x, end), b.odd(x, coefficients), far)


def _log_of_sum(b: Body, x: str, root: str) -> str:
    """log(x + root), with root = sqrt(x x +- 1), for x of at least 1."""
    is_wide = b.compare("ogt", x, WIDE)
    total = b.add(x, root)
    lost = b.div(b.sub(root, b.sub(total, x)), total)
    # if x x overflows, the logarithm of 2 x
    return log_of(b, b.select(is_wide, x, total), b.select(is_wide, LN2, lost))
