"""Scans for readers: a tile at a time, with a carried value."""

from __future__ import annotations

import numpy as np

from stack.ops.tiled import tiles, wide

Array = np.ndarray
TILE = 64  # elements per tile


def inclusive(x: Array) -> Array:
    """Adds a tile's own running sums and the total of all earlier tiles."""
    out = np.empty_like(x)
    carried = np.zeros((*x.shape[:-1], 1), wide(x))
    for tile in tiles(x.shape[-1], TILE):
        sums = np.cumsum(x[..., tile], -1, dtype=wide(x)) + carried
        out[..., tile] = sums
        carried = sums[..., -1:]
    return out


def exclusive(x: Array) -> Array:
    """Sums pairs up a tree, then adds left sums on the way down: Blelloch, 1990."""
    size = 1 << max(x.shape[-1] - 1, 0).bit_length()
    tree = np.zeros((*x.shape[:-1], size), wide(x))
    tree[..., : x.shape[-1]] = x
    step = 1
    while step < size:
        tree[..., 2 * step - 1 :: 2 * step] += tree[..., step - 1 :: 2 * step]
        step *= 2
    tree[..., -1] = 0
    while step > 1:
        step //= 2
        left = tree[..., step - 1 :: 2 * step].copy()
        tree[..., step - 1 :: 2 * step] = tree[..., 2 * step - 1 :: 2 * step]
        tree[..., 2 * step - 1 :: 2 * step] += left
    return tree[..., : x.shape[-1]].astype(x.dtype)


def segmented(x: Array, starts: Array) -> Array:
    """A sequential scan that restarts at each start."""
    out = np.empty_like(x)
    carried = np.zeros(x.shape[:-1], wide(x))
    for t in range(x.shape[-1]):
        carried = np.where(starts[..., t] != 0, 0, carried) + x[..., t]
        out[..., t] = carried
    return out


def gated(gate: Array, x: Array, first: Array) -> Array:
    """A sequential scan, over all channels at once."""
    out = np.empty_like(x)
    state = first.astype(wide(x))
    for t in range(x.shape[-2]):
        state = gate[..., t, :] * state + x[..., t, :]
        out[..., t, :] = state
    return out


def gated_gradient(
    gate: Array, x: Array, first: Array, out: Array, told: Array
) -> tuple[Array, Array, Array]:
    """Scans backwards: adds the given gradient of each state, and carries it through its gate."""
    to_gate, to_x = np.empty_like(gate), np.empty_like(x)
    carried = np.zeros(first.shape, wide(x))
    for t in reversed(range(x.shape[-2])):
        worth = told[..., t, :] + carried
        to_x[..., t, :] = worth
        to_gate[..., t, :] = worth * (out[..., t - 1, :] if t else first)
        carried = gate[..., t, :] * worth
    return to_gate, to_x, carried.astype(first.dtype)
