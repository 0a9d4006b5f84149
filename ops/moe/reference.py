"""Mixtures of experts for readers: one token, row or expert at a time."""

from __future__ import annotations

import numpy as np

from stack.ops.qgemm.formats import FORMATS

Array = np.ndarray


def top_k(scores: Array, *, top: int, normalize: bool) -> Array:
    """Sorts the experts of each token by score."""
    wide = np.result_type(scores.dtype, np.float32)
    rows = scores.reshape(-1, scores.shape[-1]).astype(wide)
    out = np.zeros_like(rows)
    for token, row in enumerate(rows):
        parts = np.exp(row - row.max())
        shares = parts / parts.sum()
        best = np.argsort(-shares, kind="stable")[:top]
        out[token, best] = shares[best] / (shares[best].sum() if normalize else 1)
    return out.reshape(scores.shape).astype(scores.dtype)


def plan(gates: Array, queue: Array, *, capacity: int) -> tuple[Array, Array]:
    """Assigns tokens to one expert after another."""
    tokens, sizes = queue.copy(), np.zeros(gates.shape[1], np.int32)
    row = 0
    for expert in range(gates.shape[1]):
        asking = np.flatnonzero(gates[:, expert])
        kept = asking[:capacity] if capacity else asking
        kept = kept[: len(queue) - row]
        tokens[row : row + len(kept)] = kept
        sizes[expert] = len(kept)
        row += len(kept)
    return tokens, sizes


def dispatch(x: Array, tokens: Array) -> Array:
    """Copies one row at a time."""
    out = np.zeros((len(tokens), x.shape[1]), x.dtype)
    for row, token in enumerate(tokens):
        if token >= 0:
            out[row] = x[token]
    return out


def combine(rows: Array, gates: Array, tokens: Array, sizes: Array) -> Array:
    """Adds one row at a time to its token."""
    out = np.zeros((len(gates), rows.shape[1]), np.result_type(rows.dtype, np.float32))
    expert_of = np.repeat(np.arange(len(sizes)), sizes)
    for row, expert in enumerate(expert_of):
        if tokens[row] >= 0:
            out[tokens[row]] += gates[tokens[row], expert] * rows[row].astype(out.dtype)
    return out.astype(rows.dtype)


def grouped_gemm(x: Array, weight: Array, sizes: Array) -> Array:
    """Multiplies one expert at a time."""
    wide = np.result_type(x.dtype, np.float32)
    out = np.zeros((len(x), weight.shape[1]), wide)
    start = 0
    for own, size in zip(weight, sizes):
        rows = slice(start, start + size)
        out[rows] = x[rows].astype(wide) @ own.astype(wide).T
        start += size
    return out.astype(x.dtype)


def grouped_gemm_fp8(
    x: Array, weight: Array, x_scale: Array, weight_scale: Array, sizes: Array, *, format: str
) -> Array:
    """Applies scales to the operands, because those of a column differ between experts."""
    decode = FORMATS[format].decode
    left = decode(x).astype(x_scale.dtype) * x_scale[:, None]
    right = decode(weight).astype(x_scale.dtype) * weight_scale[..., None]
    return grouped_gemm(left, right, sizes)
