"""Quantized products to be read: sums of a group or of a tile at a time, and scales outside."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
TILE = 64  # of what is summed over


def w8a8(x: Array, weight: Array, x_scale: Array, weight_scale: Array) -> Array:
    """Integers first: a sum of k products of 8 bits fits in 32 up to k = 131,072."""
    sums = np.zeros((*x.shape[:-1], weight.shape[0]), np.int32)
    for start in range(0, x.shape[-1], TILE):
        part = slice(start, start + TILE)
        sums += x[..., part].astype(np.int32) @ weight[:, part].astype(np.int32).T
    return (sums * x_scale[..., None] * weight_scale).astype(x_scale.dtype)


def w4a16(x: Array, packed: Array, scales: Array) -> Array:
    """A group at a time: its scale is applied to its sum."""
    wide = np.result_type(x.dtype, np.float32)
    size = x.shape[-1] // scales.shape[1]
    out = np.zeros((*x.shape[:-1], packed.shape[0]), wide)
    for group in range(scales.shape[1]):
        place = slice(group * size, (group + 1) * size)
        held = packed[:, place.start // 2 : place.stop // 2]
        codes = np.stack([held & 15, held >> 4], -1).reshape(len(held), size)
        sums = x[..., place].astype(wide) @ (codes.astype(wide) - 8).T
        out += sums * scales[:, group]
    return out.astype(x.dtype)
