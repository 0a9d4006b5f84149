"""Rotation by a Hadamard matrix: each number becomes a sum of all, so that none is an outlier.

Ashkboos et al., "QuaRot: outlier-free 4-bit inference in rotated LLMs", 2024; Chee et al., "QuIP",
2023. (x H) (W H)^T = x W^T, because H is orthogonal. If k is not a power of two, it is rotated in
blocks of the largest power of two that divides it.
"""

from __future__ import annotations

from typing import Any

import numpy

from stack.hosted.calibration import Product, calibrator

Array = numpy.ndarray


def rotate(x: Any, signs: Array | None = None, np: Any = numpy) -> Any:
    """x H along the last axis, in k log k steps (Sylvester's order).

    `signs [k]` of 1 and -1 are applied first: random signs avoid a regular x that H would map to
    outliers. Written as a decomposition: `np` may be the namespace of the IR.
    """
    k = x.shape[-1]
    block = k & -k
    made = x if signs is None else x * np.asarray(signs, x.dtype)
    width = 1
    while width < block:
        pair = made.reshape(*x.shape[:-1], -1, 2, width)
        first, second = pair[..., :1, :], pair[..., 1:, :]
        made = np.concatenate([first + second, first - second], axis=-2)
        width *= 2
    return made.reshape(x.shape) * block**-0.5


@calibrator("qgemm.hadamard")
def hadamard(product: Product) -> Product:
    """Rotates both sides, with random signs, so that neither has outliers."""
    signs = numpy.random.default_rng(0).choice([-1.0, 1.0], product.weight.shape[1])
    weight = rotate(product.weight, signs)
    return product.turned(lambda np, x: rotate(x, signs, np), weight)
