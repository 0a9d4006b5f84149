"""SmoothQuant: moves outliers of a layer's input into its weights, where they do less harm.

Xiao et al., "SmoothQuant: accurate and efficient post-training quantization for large language
models", 2022, equations 3 and 4. x W^T = (x / s) (W s)^T for any s. This s splits the difficulty:
alpha = 1 moves all of it to the weights, 0 none.
"""

from __future__ import annotations

import numpy as np

from stack.hosted.calibration import Product, calibrator

Array = np.ndarray


def migration(x: Array, weight: Array, alpha: float = 0.5) -> Array:
    """Returns the scale s of each k: max |x| ** alpha / max |weight| ** (1 - alpha).

    x is divided by s, and weights are multiplied with it.
    """
    of_x = np.maximum(np.abs(x).max(0), 1e-5)
    of_weight = np.maximum(np.abs(weight).max(0), 1e-5)
    return of_x**alpha / of_weight ** (1 - alpha)


def smooth(x: Array, weight: Array, alpha: float = 0.5) -> tuple[Array, Array]:
    """Scales the layer's input and its weights so that their product is unchanged."""
    scale = migration(x, weight, alpha)
    return x / scale, weight * scale


@calibrator("qgemm.smoothquant")
def smoothquant(product: Product) -> Product:
    """Moves outliers of x into the weights, with alpha = 1/2."""
    return product.scaled(migration(product.x, product.weight))
