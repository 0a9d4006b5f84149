"""Norms of rows for readers, a tile at a time: one pass for the sums, one for the result."""

from __future__ import annotations

import numpy as np

from stack.ops.tiled import tiles, wide

Array = np.ndarray
TILE = 256  # columns per tile


def rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    """Accumulates the sum of squares along the row."""
    squares = np.zeros(x.shape[:-1], wide(x))
    for tile in tiles(x.shape[-1], TILE):
        part = x[..., tile].astype(wide(x))
        squares += (part * part).sum(-1)
    scale = 1 / np.sqrt(squares / x.shape[-1] + eps)
    out = np.empty_like(x)
    for tile in tiles(x.shape[-1], TILE):
        out[..., tile] = x[..., tile] * scale[..., None] * weight[tile]
    return out


def add_rms_norm(x: Array, residual: Array, weight: Array, *, eps: float) -> tuple[Array, Array]:
    """Returns the norm of the sum, and the sum for the next block."""
    added = x + residual
    return rms_norm(added, weight, eps=eps), added


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> Array:
    """Merges mean and squared deviation of two parts: Chan, Golub and LeVeque, 1979."""
    mean = np.zeros(x.shape[:-1], wide(x))
    deviation = np.zeros_like(mean)
    for tile in tiles(x.shape[-1], TILE):
        part = x[..., tile].astype(wide(x))
        before, size = tile.start, tile.stop - tile.start
        own = part.mean(-1)
        delta = own - mean
        deviation += ((part - own[..., None]) ** 2).sum(-1)
        deviation += delta**2 * before * size / (before + size)
        mean += delta * size / (before + size)
    scale = 1 / np.sqrt(deviation / x.shape[-1] + eps)
    out = np.empty_like(x)
    for tile in tiles(x.shape[-1], TILE):
        out[..., tile] = (x[..., tile] - mean[..., None]) * scale[..., None] * weight[tile]
        out[..., tile] += bias[tile]
    return out


def softmax(x: Array) -> Array:
    """Rescales the sum when the maximum changes: Milakov and Gimelshein, 2018."""
    top = np.full(x.shape[:-1], -np.inf, wide(x))
    total = np.zeros_like(top)
    for tile in tiles(x.shape[-1], TILE):
        part = x[..., tile].astype(wide(x))
        newest = np.maximum(top, part.max(-1))
        total = total * np.exp(top - newest) + np.exp(part - newest[..., None]).sum(-1)
        top = newest
    out = np.empty_like(x)
    for tile in tiles(x.shape[-1], TILE):
        out[..., tile] = np.exp(x[..., tile] - top[..., None]) / total[..., None]
    return out
