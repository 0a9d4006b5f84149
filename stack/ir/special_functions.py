"""Special functions of one number that NumPy lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

erf = math.erf


def each(function: Callable[[float], float], x: Any) -> Any:
    """Applies a function of one number to every element, in f64."""
    flat = np.asarray(x, dtype=np.float64).reshape(-1)
    out = np.fromiter((function(v) for v in flat.tolist()), np.float64, flat.size)
    return out.reshape(np.shape(x)).astype(np.asarray(x).dtype)


def lgamma(x: float) -> float:
    """Log of |gamma(x)|; inf at the poles."""
    if math.isnan(x):
        return x
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def digamma(x: float) -> float:
    """Reflection, recurrence up to 12, then the asymptotic series (Abramowitz, Stegun 6.3.18)."""
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == math.inf:
        return x
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if x == math.floor(x):
            return math.nan
        return digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1.0))
    total = 0.0
    while x < 12:
        total -= 1 / x
        x += 1
    y = 1 / (x * x)
    series = 0.0
    for term in (-691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12):
        series = y * (term + series)
    return total + math.log(x) - 0.5 / x - series


def erfinv(x: float) -> float:
    """Winitzki's approximation as a start, then Newton steps on erf or erfc."""
    if math.isnan(x) or abs(x) > 1:
        return math.nan
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    if x == 0:
        return x
    size = abs(x)
    log = math.log1p(-size * size)
    half = 2 / (math.pi * 0.147) + log / 2
    y = math.sqrt(math.sqrt(half * half - log / 0.147) - half)
    for _ in range(3):
        # erfc keeps the digits of 1 - erf in the tail
        error = (1 - size) - math.erfc(y) if size > 0.5 else math.erf(y) - size
        slope = 2 / math.sqrt(math.pi) * math.exp(-y * y)
        y -= error / slope
    return math.copysign(y, x)
