"""SmoothQuant: outliers of what a layer is given move into its weights, where they do less harm.

Xiao et al., "SmoothQuant: accurate and efficient post-training quantization for large language
models", 2022, equations 3 and 4. x W^T = (x / s) (W s)^T for any s; this one shares the difficulty:
alpha = 1 moves all of it to the weights, 0 none.
"""

from __future__ import annotations

import numpy as np

from stack.hosted.calibration import Product, calibrator

Array = np.ndarray


def migration(x: Array, weight: Array, alpha: float = 0.5) -> Array:
    """s for each of k: max |x| ** alpha / max |weight| ** (1 - alpha)."""
    of_x = np.maximum(np.abs(x).max(0), 1e-5)
    of_weight = np.maximum(np.abs(weight).max(0), 1e-5)
    return of_x**alpha / of_weight ** (1 - alpha)


def smooth(x: Array, weight: Array, alpha: float = 0.5) -> tuple[Array, Array]:
    """What the layer before gives, and the weights, so that their product stays."""
    scale = migration(x, weight, alpha)
    return x / scale, weight * scale


@calibrator("qgemm.smoothquant")
def smoothquant(product: Product) -> Product:
    """Outliers of x move into the weights, half of the way."""
    return product.scaled(migration(product.x, product.weight))
