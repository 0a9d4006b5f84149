"""Rotation by a Hadamard matrix: every number becomes a sum of all, so that none is an outlier.

Ashkboos et al., "QuaRot: outlier-free 4-bit inference in rotated LLMs", 2024; Chee et al., "QuIP",
2023. (x H) (W H)^T = x W^T, for H is orthogonal. Where k is no power of two, blocks of
the largest that divides it are rotated.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def rotate(x: Array, signs: Array | None = None) -> Array:
    """x H along the last axis, in k log k steps (Sylvester's order).

    `signs [k]` of 1 and -1 go before: random ones keep H from meeting a regular x.
    """
    k = x.shape[-1]
    block = k & -k
    made = x if signs is None else x * signs
    width = 1
    while width < block:
        pair = made.reshape(*x.shape[:-1], -1, 2, width)
        first, second = pair[..., 0, :], pair[..., 1, :]
        made = np.stack([first + second, first - second], -2)
        width *= 2
    return made.reshape(x.shape) / np.sqrt(block, dtype=x.dtype)


def incoherence(weight: Array) -> float:
    """How far the largest is above the mean size: 1 where all are as large."""
    return float(np.abs(weight).max() / np.sqrt(np.mean(weight**2)))
