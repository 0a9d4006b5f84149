"""Attention to be read: a tile of keys at a time, with a running maximum, sum and output.

Source: Dao et al., "FlashAttention", 2022; the sum that a new maximum corrects is of Milakov and
Gimelshein, 2018.
"""

from __future__ import annotations

import numpy as np

from stack.ops.attention.rule import check
from stack.ops.tiled import tiles

Array = np.ndarray
TILE = 64  # keys that are held at once


def attention(
    q: Array, k: Array, v: Array, *, causal: bool, window: int, softcap: float, scale: float
) -> Array:
    return _attention(q, k, v, causal, window, softcap, scale)


def with_sinks(
    q: Array, k: Array, v: Array, sinks: Array, *, causal: bool, window: int, scale: float
) -> Array:
    return _attention(q, k, v, causal, window, 0.0, scale, sinks=sinks)


def with_alibi(
    q: Array, k: Array, v: Array, slopes: Array, *, causal: bool, window: int, scale: float
) -> Array:
    return _attention(q, k, v, causal, window, 0.0, scale, slopes=slopes)


def _attention(
    q: Array,
    k: Array,
    v: Array,
    causal: bool,
    window: int,
    softcap: float,
    scale: float,
    slopes: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    heads, queries, width = q.shape[-3:]
    groups, keys = k.shape[-3:-1]
    check(heads, groups, queries, keys, causal, window)
    dtype = np.result_type(q.dtype, np.float32)
    k, v = (np.repeat(x, heads // groups, axis=-3).astype(dtype) for x in (k, v))
    row = np.arange(queries)[:, None] + keys - queries
    # one more score, of a key without a value, comes first
    top = np.full((*q.shape[:-1], 1), -np.inf, dtype)
    total = np.zeros_like(top)
    if sinks is not None:
        top[...] = sinks[:, None, None]
        total[...] = 1
    out = np.zeros((*q.shape[:-1], v.shape[-1]), dtype)
    for tile in tiles(keys, TILE):
        column = np.arange(tile.start, tile.stop)[None, :]
        scores = q.astype(dtype) @ k[..., tile, :].swapaxes(-1, -2) * (scale or width**-0.5)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if slopes is not None:
            scores = scores - slopes[:, None, None] * (row - column)
        seen = (column <= row) | (not causal)
        seen = seen & ((row - column < window) | (not window))
        scores = np.where(seen, scores, -np.inf)
        newest = np.maximum(top, scores.max(-1, keepdims=True))
        safe = np.where(newest == -np.inf, 0, newest)  # nothing seen so far
        correction = np.exp(top - safe)
        weights = np.exp(scores - safe)
        total = total * correction + weights.sum(-1, keepdims=True)
        out = out * correction + weights @ v[..., tile, :]
        top = newest
    return (out / total).astype(q.dtype)
