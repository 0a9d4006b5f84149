"""Bytes of E4M3 as numbers, by arithmetic that every backend has."""

from __future__ import annotations

from typing import Any


def e4m3(np: Any, code: Any) -> Any:
    """The values, in f32, of uint8 codes: Micikevicius et al., "FP8 formats", 2022. nan is nan.

    A sign, 4 bits of exponent with bias 7, 3 bits of mantissa; exponent 0 has no leading 1.
    """
    size = (code & 127).astype(np.int32)
    exponent, mantissa = size >> 3, size & 7
    is_normal = exponent > 0
    whole = np.where(is_normal, mantissa + 8, mantissa) << np.where(is_normal, exponent, 1)
    value = np.where(size == 127, np.nan, whole.astype(np.float32) / 1024)
    return np.where((code & 128) > 0, -value, value)
