"""AWQ: scales weights up, before rounding, if their inputs are large.

Lin et al., "AWQ: activation-aware weight quantization for LLM compression and acceleration", 2023,
section 3.2. The rounding step is the same for all weights, so an important weight is scaled up, and
its input down. A single number alpha is searched for: s = mean |x| ** alpha.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stack.hosted.calibration import Product, calibrator

Array = np.ndarray


def search(
    x: Array, weight: Array, run: Callable[[Array, Array], Array], steps: int = 20
) -> tuple[Array, float]:
    """Returns the scales, one per k, that give the least error of the matmul, and that error.

    Weights are multiplied by them before they are rounded, and x is divided by them. `run(x,
    weight)` computes the matmul with rounded weights; the error is the mean squared difference to
    `x @ weight.T`. `steps`: number of candidates.
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
    """Scales weights up, before rounding, if their inputs are large."""
    return product.scaled(search(product.x, product.weight, product.run)[0])
