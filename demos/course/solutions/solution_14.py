"""Solutions of exercise 14."""

import numpy as np

import stack.mini as mini


def window(row, key, width, sinks):
    """True where query `row` sees `key`."""
    return (key <= row) & ((row - key < width) | (key < sinks))


def attention(q, k, v, width):
    """Attention with a sliding window."""
    scores = q @ k.T / q.shape[1] ** 0.5
    row, key = mini.iota(scores.shape, 0), mini.iota(scores.shape, 1)
    seen = mini.where(row >= key, scores, -np.inf)
    near = mini.where(key >= row - (width - 1), seen, -np.inf)
    weights = mini.exp(near - mini.max(near, axis=1, keepdims=True))
    return (weights / mini.sum(weights, axis=1, keepdims=True)) @ v


def blocks(mask, size):
    """(empty, full, mixed)"""
    rows, columns = (n // size for n in mask.shape)
    seen = mask.reshape(rows, size, columns, size).sum((1, 3))
    empty, full = int((seen == 0).sum()), int((seen == size * size).sum())
    return empty, full, rows * columns - empty - full
