"""Storage arrays: the representation of values between steps and at interfaces. bf16 is uint16
bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stack.ir.data import round_bf16
from stack.ir.types import BF16, DType


def storage_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy element type of storage arrays; uint16 for bf16."""
    return np.dtype("uint16" if dtype is BF16 else dtype.numpy)


def decode(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Converts storage to the interpreter's arrays: bf16 becomes float32."""
    if dtype is not BF16:
        return array
    return np.asarray(array.astype(np.uint32) << 16).view(np.float32)


def encode(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Converts the interpreter's arrays to storage: float32 is rounded to bf16."""
    if dtype is not BF16:
        return array
    wide = round_bf16(np.asarray(array, dtype=np.float32))
    return np.asarray(wide.view(np.uint32) >> 16, dtype=np.uint16)
