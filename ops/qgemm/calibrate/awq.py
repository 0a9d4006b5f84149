"""AWQ: weights that meet large inputs are made larger before they are rounded.

Lin et al., "AWQ: activation-aware weight quantization for LLM compression and acceleration", 2023,
section 3.2. Rounding is off by the same step whatever the weight, so a weight that counts more is
scaled up, and its input down. One number is searched for, alpha: s = mean |x| ** alpha.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stack.hosted.calibration import Product, calibrator

Array = np.ndarray


def search(
    x: Array, weight: Array, run: Callable[[Array, Array], Array], steps: int = 20
) -> tuple[Array, float]:
    """The s for each of k whose product is nearest to the original, and its mean square error.

    `run(x, weight)` is the product with weights that are rounded.
    """
    importance = np.maximum(np.abs(x).mean(0), 1e-5)
    exact = x @ weight.T
    best, least = np.ones_like(importance), np.inf
    for alpha in np.arange(steps) / steps:
        scale = importance**alpha
        scale = scale / np.sqrt(scale.max() * scale.min())
        error = float(np.mean((run(x / scale, weight * scale) - exact) ** 2))
        if error < least:
            best, least = scale, error
    return best, least


@calibrator("qgemm.awq")
def awq(product: Product) -> Product:
    """Weights that meet large inputs are made larger before they are rounded."""
    return product.scaled(search(product.x, product.weight, product.run)[0])
