"""Inputs of the programs in `stream_torch` and `stream_jax`, which have the same names there."""

from __future__ import annotations

import numpy as np

B, H, G, M, N, D, E = 2, 4, 2, 12, 17, 8, 5
ROWS, LONG, VOCAB = 5, 40, 33


def inputs(name: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Arrays for the program of that name."""

    def f32(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def ids(high: int, *shape: int) -> np.ndarray:
        return rng.integers(0, high, shape).astype(np.int32)

    q, k, v = f32(B, H, M, D), f32(B, H, N, D), f32(B, H, N, E)
    x = f32(ROWS, LONG)
    table = {
        "grouped": [q, f32(B, G, N, D), f32(B, G, N, E)],
        "document": [q, k, v, np.sort(ids(3, B, M)), np.sort(ids(3, B, N))],
        "bias": [q, k, v, f32(H, M, N)],
        "learned": [q, k, v, f32(H, M + N)],
        "differential": [q, k, f32(B, H, M, D), f32(B, H, N, D), v],
        "sigmoid": [f32(B, H, 64, D), f32(B, H, 65, D), f32(B, H, 65, E)],
        "decayed": [f32(M, N), -np.cumsum(np.abs(f32(16, N)), -1), f32(16, N, E)],
        "bilinear": [f32(ROWS, D), f32(D, E), f32(VOCAB, E)],
        "linear_loss": [f32(7, D), f32(VOCAB, D), ids(VOCAB, 7)],
        "loss": [x, ids(LONG, ROWS)],
        "layer": [x, f32(LONG), f32(LONG)],
        "rms": [x, f32(LONG)],
        "kl": [x, f32(ROWS, LONG)],
        "ties": [np.round(x)],
        "softmin": [x, f32(LONG, 6)],
        "expected_variance": [x, f32(ROWS, LONG)],
        "standardized": [x, f32(LONG, 6)],
    }
    if name in ROW_PROGRAMS and name not in table:
        return [x]
    return table.get(name, [q, k, v])


# the ten variants that a naive source has to become one pass in
VARIANTS = (
    "causal", "alibi", "softcap", "window", "grouped", "document", "differential", "bias",
    "sigmoid", "learned",
)  # fmt: skip
DOT_PROGRAMS = (*VARIANTS, "plain", "with_lse", "by_lse", "bilinear", "linear_loss", "decayed")
ROW_PROGRAMS = (
    "softmax", "log_softmax", "lse", "loss", "layer", "rms", "variance", "third_moment",
    "entropy", "kl", "softmin", "ties", "expected_variance", "standardized",
)  # fmt: skip
