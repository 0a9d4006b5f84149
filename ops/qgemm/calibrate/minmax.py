"""Min-max calibration: the scale of a layer's input, from the extremes of a sample.

Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only
inference", 2018, section 3.1. A fraction of the sample may be cut off at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

import stack.ops.qgemm.pack as pack
from stack.hosted.calibration import Product, calibrator

Array = np.ndarray


@dataclass
class MinMax:
    """Collects the range of samples, and computes the scale.

    Attributes:
        bits: of the integers.
        share: the fraction of each sample that counts; the rest are outliers.
    """

    bits: int = 8
    share: float = 1.0
    low: float = field(default=0.0, init=False)
    high: float = field(default=0.0, init=False)

    def see(self, x: Array) -> None:
        """Widen the range to include a sample."""
        cut = (1 - self.share) / 2
        low, high = np.quantile(x, [cut, 1 - cut])
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))

    def symmetric(self) -> float:
        """The scale of integers from -(2 ** (bits - 1) - 1), which represent 0 as 0."""
        largest = (1 << (self.bits - 1)) - 1
        return max(-self.low, self.high) / largest or 1.0

    def affine(self) -> tuple[float, int]:
        """The scale of integers from 0 to 2 ** bits - 1, and the integer that represents 0."""
        scale = (self.high - self.low) / ((1 << self.bits) - 1) or 1.0
        return scale, round(-self.low / scale)


@calibrator("qgemm.minmax")
def minmax(product: Product) -> Product:
    """The scale of x from the extremes of the sample."""
    if product.scheme.packs is not pack.w8a8_static:
        raise ValueError(f"{product.scheme.name} has no scale of x; minmax is for w8a8_static")
    seen = MinMax()
    seen.see(product.x)
    scale = seen.symmetric()
    return replace(product, operands=pack.w8a8_static(product.weight, x_scale=scale))
