"""Shared by the references for readers: tiles of an axis, and the type of sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def tiles(size: int, width: int) -> Iterator[slice]:
    """Splits an axis of `size` elements into tiles of `width`."""
    for start in range(0, size, width):
        yield slice(start, min(start + width, size))


def wide(x: np.ndarray) -> np.dtype:
    """The element type of sums of `x`: its own, at least f32."""
    return np.result_type(x.dtype, np.float32)
