"""What references that are to be read share: tiles of an axis, and the type of sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def tiles(size: int, width: int) -> Iterator[slice]:
    """The parts of an axis of `size` elements, `width` of them at a time."""
    for start in range(0, size, width):
        yield slice(start, min(start + width, size))


def wide(x: np.ndarray) -> np.dtype:
    """The element type that sums of `x` are held in: its own, at least f32."""
    return np.result_type(x.dtype, np.float32)
