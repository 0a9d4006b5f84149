"""Cross-entropy for readers: a tile of classes at a time, with a running maximum and sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stack.ops.tiled import tiles

Array = np.ndarray
TILE = 256  # classes per tile


def _streamed(
    logits: Callable[[slice], Array], classes: int, target: Array, dtype: np.dtype, ignored: int
) -> Array:
    """Returns the loss of each row: log(sum(exp(logits))) minus the logit of its target.

    `logits(tile)` returns the logits of a tile of classes. Rows with target `ignored` get 0.
    """
    top = np.full(target.shape, -np.inf, dtype)
    total = np.zeros(target.shape, dtype)
    picked = np.zeros(target.shape, dtype)
    for tile in tiles(classes, TILE):
        part = logits(tile)
        newest = np.maximum(top, part.max(-1))
        total = total * np.exp(top - newest) + np.exp(part - newest[..., None]).sum(-1)
        top = newest
        here = (tile.start <= target) & (target < tile.stop)
        place = np.where(here, target - tile.start, 0)
        picked = np.where(here, np.take_along_axis(part, place[..., None], -1)[..., 0], picked)
    return np.where(target != ignored, top + np.log(total) - picked, 0).astype(dtype)


def cross_entropy(logits: Array, target: Array, *, ignore_index: int) -> Array:
    """Computes losses from given logits."""
    dtype = np.result_type(logits.dtype, np.float32)
    return _streamed(
        lambda tile: logits[..., tile].astype(dtype), logits.shape[-1], target, dtype, ignore_index
    )


def linear_cross_entropy(x: Array, weight: Array, target: Array, *, ignore_index: int) -> Array:
    """Computes each tile of logits when it is needed, and discards it."""
    dtype = np.result_type(x.dtype, np.float32)
    return _streamed(
        lambda tile: x.astype(dtype) @ weight[tile].astype(dtype).T,
        weight.shape[0],
        target,
        dtype,
        ignore_index,
    )
