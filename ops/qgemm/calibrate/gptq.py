"""GPTQ: rounds weights column by column, and corrects later columns for the error.

Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained transformers",
2022, algorithm 1. With H = 2 x^T x, an error e of column i costs least if later columns change by
-e U[i, i:] / U[i, i], where U is the Cholesky factor of the inverse of H.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from stack.hosted.calibration import Product, calibrator
from stack.ops.qgemm.pack import Arrays, Grid

Array = np.ndarray
BLOCK = 128  # columns whose errors are applied to later columns in one matmul


def inverse_factor(x: Array, damp: float = 0.01) -> Array:
    """Returns the upper Cholesky factor U of inverse(H) = U^T U, for the Hessian H = 2 x^T x.

    `damp` times the mean of H's diagonal is added to the diagonal.
    """
    hessian = 2 * x.T.astype(np.float64) @ x
    hessian += damp * np.mean(np.diag(hessian)) * np.eye(len(hessian))
    return np.linalg.cholesky(np.linalg.inv(hessian)).T


def quantize(x: Array, weight: Array, grid: Grid, group: int = 128, damp: float = 0.01) -> Arrays:
    """Rounds weights by GPTQ to values of `grid`; returns the operands of its operator after x.

    A group's scale is chosen at its first column, from the weights as corrected until then. Raises
    ValueError if groups do not divide k.
    """
    (n, k), factor, size = weight.shape, inverse_factor(x, damp), grid.group(weight.shape[1], group)
    if size < 1 or k % size:
        raise ValueError(f"groups of {size} do not divide rows of {k} weights")
    left, codes = weight.astype(np.float64), np.empty((n, k))
    shared: list[Arrays] = []
    block = math.gcd(size, BLOCK)  # groups start at block boundaries
    for start in range(0, k, block):
        end = start + block
        if start % size == 0:
            shared.append(grid.fit(left[:, start : start + size].astype(weight.dtype)))
        errors = np.empty((n, block))
        for i in range(start, end):
            column = codes[:, i] = grid.encode(left[:, i], *shared[-1])
            error = (left[:, i] - grid.decode(column, *shared[-1])) / factor[i, i]
            left[:, i:end] -= error[:, None] * factor[i, i:end]
            errors[:, i - start] = error
        left[:, end:] -= errors @ factor[start:end, end:]
    by_group = (np.stack(parts, -1) for parts in zip(*shared, strict=True))
    return grid.store(codes.astype(np.int64), *by_group)


@calibrator("qgemm.gptq")
def gptq(product: Product) -> Product:
    """Rounds columns one by one, and corrects later columns for the error."""
    grid = product.scheme.packs
    if not isinstance(grid, Grid):
        raise ValueError(f"{product.scheme.name} rounds whole blocks; gptq needs columns")
    operands = quantize(product.x, product.weight, grid, product.group)
    return replace(product, operands=operands)
