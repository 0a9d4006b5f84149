"""Shared by the references for readers: tiles of an axis, and the type of sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def tiles(size: int, width: int) -> Iterator[slice]:
    """Yields slices of `width` elements that cover an axis of `size` elements; the last one may be
    shorter."""
    for start in range(0, size, width):
        yield slice(start, min(start + width, size))


def wide(x: np.ndarray) -> np.dtype:
    """Returns the element type in which sums of `x` are computed: NumPy's common type of `x` and
    f32."""
    return np.result_type(x.dtype, np.float32)
