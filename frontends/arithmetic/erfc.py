"""Accurate erfc for large x, where 1 - erf(x) cancels: t times exp(p(t) - x x).

W. J. Cody, "Rational Chebyshev approximation for the error function" (1969), for the scaling.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from stack.ir.builder import Builder, constant
from stack.ir.node import Node


def erfc(b: Builder, x: Node) -> Node:
    """Computes 1 - erf(x) of f32 or f64, in the arithmetic of its type."""
    size = b.abs(x)
    t = b.div(constant(2, x.dtype), b.add(size, 2.0))
    u = b.sub(b.mul(t, 2.0), 1.0)
    coefficients = erfc_coefficients(26 if x.dtype.bits == 64 else 11)
    poly: Node = constant(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        poly = b.add(b.mul(u, poly), c)
    tail = b.mul(t, b.exp(b.sub(poly, b.mul(size, size))))
    # inf - inf: the tail of an infinite argument is 0
    tail = b.select(b.isfinite(size), tail, b.select(b.isnan(x), x, constant(0, x.dtype)))
    return b.select(b.lt(x, 0.0), b.sub(constant(2, x.dtype), tail), tail)


@cache
def erfc_coefficients(count: int) -> tuple[float, ...]:
    """Returns the coefficients of a polynomial in `2 * t - 1` that fits the exponent.

    The exponent is `log(erfc(x) / t) + x * x`, for `t = 2 / (2 + x)` and `x >= 0`.
    """
    nodes = np.cos(np.pi * (np.arange(4 * count) + 0.5) / (4 * count))
    t = (nodes + 1) / 2
    logs = np.array([_log_scaled_erfc(v) for v in 2 / t - 2]) - np.log(t)
    series = np.polynomial.chebyshev.Chebyshev.fit(nodes, logs, count - 1, domain=[-1, 1])
    return tuple(float(c) for c in series.convert(kind=np.polynomial.Polynomial).coef)


def _log_scaled_erfc(x: float) -> float:
    """Computes `log(erfc(x) * exp(x * x))`: directly, or for large `x` by a continued fraction."""
    if x < 2:
        return math.log(math.erfc(x)) + x * x
    fraction = 0.0
    for k in range(200, 0, -1):
        fraction = k / 2 / (x + fraction)
    return -math.log(math.sqrt(math.pi) * (x + fraction))
