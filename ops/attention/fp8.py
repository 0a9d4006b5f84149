"""Converts E4M3 bytes to numbers, with arithmetic that every backend supports."""

from __future__ import annotations

from typing import Any


def e4m3(np: Any, code: Any) -> Any:
    """Values of uint8 codes, in f32: Micikevicius et al., "FP8 formats", 2022. NaN stays NaN.

    A code is a sign, 4 bits of exponent with bias 7, and 3 bits of mantissa. Exponent 0 is
    subnormal.
    """
    size = (code & 127).astype(np.int32)
    exponent, mantissa = size >> 3, size & 7
    is_normal = exponent > 0
    whole = np.where(is_normal, mantissa + 8, mantissa) << np.where(is_normal, exponent, 1)
    value = np.where(size == 127, np.nan, whole.astype(np.float32) / 1024)
    return np.where((code & 128) > 0, -value, value)
