"""Variants of attention with random inputs, and masks that leave keys out or may not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Tensor = Any
HIDDEN = -math.inf

SKIPPING = ("causal", "alibi", "softcap", "window", "gqa", "document", "sigmoid")
VARIANTS = (*SKIPPING, "differential", "bias", "learned", "full")


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def variant_inputs(name: str, rng: np.random.Generator, seq: int, width: int = 16) -> list[Tensor]:
    """Batch 2, four heads, two of keys for gqa."""
    heads = 2 if name == "gqa" else 4
    q = normal(rng, 2, 4, seq, width)
    k, v = normal(rng, 2, heads, seq, width), normal(rng, 2, heads, seq, width)
    more: dict[str, Callable[[], list[Tensor]]] = {
        "alibi": lambda: [2.0 ** -torch.arange(1, 5)],
        "document": lambda: [(torch.from_numpy(rng.random((2, seq))) < 0.05).cumsum(1)],
        "bias": lambda: [normal(rng, 4, seq, seq)],
        "learned": lambda: [normal(rng, 4, 2 * seq - 1)],
    }
    if name == "differential":
        return [q, k, normal(rng, *q.shape), normal(rng, *k.shape), v]
    return [q, k, v, *more.get(name, list)()]


def masked(hide: Callable[[Tensor, Tensor], Tensor], fill: float = HIDDEN) -> Callable[..., Tensor]:
    """Rows and columns of scores to where they are hidden."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        row = torch.arange(scores.shape[-2])[:, None]
        column = torch.arange(scores.shape[-1])[None, :]
        return torch.softmax(scores.masked_fill(hide(row, column), fill), -1) @ v

    return program


LIMITS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "lower": lambda i, j: j > i,
    "strictly below or first": lambda i, j: j >= i + 1,
    "negated": lambda i, j: ~(i >= j),
    "from below": lambda i, j: i - j > 0,
    "shifted": lambda i, j: j > i + 40,
    "window": lambda i, j: (j > i) | (i - j >= 70),
    "window of one": lambda i, j: (j > i) | (j < i),
    "both sides": lambda i, j: ~((j - i < 33) & (i - j < 90)),
    "half a sum": lambda i, j: i + j > 140,
    "columns alone": lambda i, j: j >= 90 + 0 * i,
    "first columns": lambda i, j: j < 5 + 0 * i,
}


KEPT: dict[str, tuple[Callable[..., Tensor], float]] = {
    "a fill of a half": (lambda i, j: j > i, 0.5),
    "a negative fill": (lambda i, j: j > i, -9.0),
    "zero before the exponential": (lambda i, j: j > i, 0.0),
    "every third": (lambda i, j: (i - j) % 3 != 0, HIDDEN),
    "a product of positions": (lambda i, j: i * j > 3000, HIDDEN),
    "either of two": (lambda i, j: (j > i) & (j < 50), HIDDEN),
}
