"""Attention for readers: a tile of keys at a time, with a running maximum, sum and output.

Source: Dao et al., "FlashAttention", 2022. Rescaling the sum when the maximum changes is from
Milakov and Gimelshein, 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.ops.attention.programs import Place, Program, scored, spread
from stack.ops.attention.rule import check
from stack.ops.tiled import tiles

Array = np.ndarray
TILE = 64  # keys per tile


def attend(
    program: Program,
    q: Array,
    k: Array,
    v: Array,
    operands: Sequence[Array],
    attributes: dict[str, Any],
) -> tuple[Array, Array]:
    """Returns the result [..., h, s, e], and the log-sum-exp of scores [..., h, s]."""
    (h, s, d), (g, t) = q.shape[-3:], k.shape[-3:-1]
    check(s, t, attributes["causal"], attributes["window"])
    wide = np.result_type(q.dtype, np.float32)
    queries = q.astype(wide).reshape(-1, g, h // g, s, d)
    keys, values = (x.astype(wide).reshape(-1, g, 1, t, x.shape[-1]) for x in (k, v))
    held = [
        spread(np, axes, x, g, h // g, wide)
        for axes, x in zip(program.operands.values(), operands, strict=True)
    ]
    row = np.arange(s)[:, None] + t - s

    top = np.full((*queries.shape[:-1], 1), -np.inf, wide)
    total = np.zeros_like(top)
    out = np.zeros((*queries.shape[:-1], v.shape[-1]), wide)
    if program.sink is not None:  # an extra score without a value is processed first
        top[...] = program.sink(np, *held)
        total[...] = 1
    for tile in tiles(t, TILE):
        place = Place(row, np.arange(tile.start, tile.stop)[None, :], t)
        mine = [x[..., tile] if x.shape[-1] == t else x for x in held]
        scores = queries @ keys[..., tile, :].swapaxes(-1, -2) * (attributes["scale"] or d**-0.5)
        scores = scored(np, program, scores, place, mine, attributes)
        newest = np.maximum(top, scores.max(-1, keepdims=True))
        safe = np.where(newest == -np.inf, 0, newest)  # no key seen so far
        correction = np.exp(top - safe)
        weights = np.exp(scores - safe)
        total = total * correction + weights.sum(-1, keepdims=True)
        out = out * correction + weights @ values[..., tile, :]
        top = newest
    seen = total > 0
    out = np.where(seen, out / np.where(seen, total, 1), 0)
    lse = np.where(seen, top + np.log(np.where(seen, total, 1)), -np.inf)
    return (
        out.reshape(*q.shape[:-1], v.shape[-1]).astype(q.dtype),
        lse.reshape(q.shape[:-1]),
    )


def merge(outs: Array, lses: Array) -> tuple[Array, Array]:
    """Merges results over parts of the keys one by one, rescaling the earlier ones."""
    out, lse = outs[..., 0, :], lses[..., 0]
    for part in range(1, lses.shape[-1]):
        newest = np.logaddexp(lse, lses[..., part])
        safe = np.where(newest == -np.inf, 0, newest)  # no key seen so far
        out = out * np.exp(lse - safe)[..., None]
        out = out + outs[..., part, :] * np.exp(lses[..., part] - safe)[..., None]
        lse = newest
    return out.astype(outs.dtype), lse.astype(lses.dtype)


def paged(
    program: Program,
    q: Array,
    pool_k: Array,
    pool_v: Array,
    table: Array,
    lengths: Array,
    **at: Any,
) -> Array:
    """Attention with paged keys, one sequence at a time; concatenates the pages of each."""
    out = np.empty((*q.shape[:-1], pool_v.shape[-1]), q.dtype)
    for place in np.ndindex(*lengths.shape):
        length = int(lengths[place])
        used = table[place][: -(-length // pool_k.shape[1])]
        keys, values = (
            np.concatenate(pool[used])[:length].swapaxes(0, 1) for pool in (pool_k, pool_v)
        )
        out[place] = attend(program, q[place], keys, values, (), at)[0]
    return out
