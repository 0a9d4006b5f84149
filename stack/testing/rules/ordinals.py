"""Floats as integers in the order of their values: neighbours differ by 1, both zeros are 0."""

from __future__ import annotations

import numpy as np

from stack.ir.types import BF16, DType

_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_BF16_SHIFT = 16  # bf16 values are float32 arrays whose last bits are 0


def ordinals(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns the number of floats between 0 and each element, negative for negative elements."""
    bits = np.ascontiguousarray(array).view(_BITS[array.itemsize]).reshape(array.shape)
    last = 8 * array.itemsize - 1
    size = (bits & bits.dtype.type((1 << last) - 1)).astype(np.int64)
    if dtype is BF16:
        size >>= _BF16_SHIFT
    return np.where(bits >> bits.dtype.type(last), -size, size)


def from_ordinals(numbers: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns the floats with these ordinals; 0 is +0."""
    kind = np.dtype(dtype.numpy)
    size = np.abs(numbers) << (_BF16_SHIFT if dtype is BF16 else 0)
    values = size.astype(_BITS[kind.itemsize]).view(kind)
    return np.where(numbers < 0, -values, values)


def largest(dtype: DType) -> int:
    """Returns the ordinal of the largest finite float of a type."""
    limit = np.asarray(np.finfo(dtype.numpy).max, dtype=dtype.numpy)
    return int(ordinals(limit, dtype))


def ulps(want: np.ndarray, have: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns how many floats each element of `have` is away from that of `want`, as f64.

    Integers and bools differ by 0 or inf, as do a nan and a number, and complex numbers.
    """
    same = np.asarray(want == have)
    if dtype.kind != "f":
        return np.where(same, 0.0, np.inf)
    nan = np.isnan(want), np.isnan(have)
    with np.errstate(over="ignore"):
        away = np.abs(ordinals(want, dtype) - ordinals(have, dtype)).astype(np.float64)
    return np.where(nan[0] | nan[1], np.where(nan[0] & nan[1], 0.0, np.inf), away)
