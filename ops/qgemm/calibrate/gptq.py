"""GPTQ: weights are rounded one after the other, and those to come make up for the error.

Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained transformers",
2022, algorithm 1. With H = 2 x^T x, rounding column i off by e costs least where later columns move
by -e U[i, i:] / U[i, i], of the Cholesky factor U of the inverse of H.
"""

from __future__ import annotations

import numpy as np

from stack.ops.qgemm.pack import halves_of, steps

Array = np.ndarray
LARGEST = 7  # of codes of 4 bits with a sign


def inverse_factor(x: Array, damp: float = 0.01) -> Array:
    """The upper Cholesky factor U of inverse(H) = U^T U; `damp` of the mean is added to H."""
    hessian = 2 * x.T.astype(np.float64) @ x
    hessian += damp * np.mean(np.diag(hessian)) * np.eye(len(hessian))
    return np.linalg.cholesky(np.linalg.inv(hessian)).T


def quantize(x: Array, weight: Array, group: int = 128, damp: float = 0.01) -> tuple[Array, Array]:
    """Codes and a scale for each group: operands of `qgemm.w4a16`.

    A group's scale is chosen when its first column comes, of weights as they are by then. Raises
    ValueError where groups do not divide k.
    """
    (n, k), factor = weight.shape, inverse_factor(x, damp)
    if k % group:
        raise ValueError(f"rows of {k} weights have no groups of {group}")
    left = weight.astype(np.float64)
    codes, scales = np.zeros((n, k)), np.zeros((n, k // group))
    for i in range(k):
        if i % group == 0:
            scales[:, i // group] = steps(left[:, i : i + group], LARGEST)
        scale = scales[:, i // group]
        codes[:, i] = np.clip(np.rint(left[:, i] / scale), -LARGEST - 1, LARGEST)
        error = (left[:, i] - codes[:, i] * scale) / factor[i, i]
        left[:, i:] -= error[:, None] * factor[i, i:]
    return halves_of(codes.reshape(n, -1, group) + 8), scales.astype(weight.dtype)
