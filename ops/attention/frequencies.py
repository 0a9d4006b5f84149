"""Rotary position embedding: the frequencies of pairs of features, and ways to extend the context.

Su et al., "RoFormer", 2021. Pair i of `width / 2` is rotated by position * base^(-2i / width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stack.errors import UsageError

Array = np.ndarray
Kind = Literal["none", "linear", "ntk", "yarn", "llama3"]


@dataclass(frozen=True)
class Rope:
    """Rotation frequencies for heads of `width` features.

    Attributes:
        kind: "linear" scales positions down (Chen et al., 2023). "ntk" increases the base instead,
            so that fast pairs keep their angle (bloc97, 2023). "yarn" keeps fast pairs, scales slow
            ones down, and sharpens scores (Peng et al., 2023). "llama3" does so by wavelength,
            without sharpening (Llama Team, 2024).
        factor: ratio of the extended context to the trained one.
        trained: number of positions in training.
        fast, slow: rotations within `trained` above which a pair is kept, and below which it is
            scaled. In between, "yarn" interpolates by pair, "llama3" by rotations.
    """

    width: int
    base: float = 10000.0
    kind: Kind = "none"
    factor: float = 1.0
    trained: int = 8192
    fast: float = 32.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        if self.width % 2 or self.width < 2:
            raise UsageError(f"'width': {self.width} features are not pairs; write an even number")
        if self.factor < 1 or self.base <= 1:
            raise UsageError(f"'factor' {self.factor} must be >= 1, 'base' {self.base} > 1")

    @property
    def magnitude(self) -> float:
        """The factor of all cosines and sines."""
        return 0.1 * math.log(self.factor) + 1 if self.kind == "yarn" else 1.0

    def frequencies(self) -> Array:
        """The angle per position, [width / 2] in f64."""
        base = self.base
        if self.kind == "ntk":
            base *= self.factor ** (self.width / (self.width - 2))
        plain = base ** (-np.arange(0, self.width, 2) / self.width)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind in ("yarn", "llama3"):
            kept = self._kept(plain)
            return plain * kept + plain / self.factor * (1 - kept)
        return plain

    def _kept(self, plain: Array) -> Array:
        """Returns the share of each pair's original angle: 1 for fast pairs, 0 for slow ones.

        The rest is the share of that angle divided by `factor`. `plain`: original angles per
        position.
        """
        if self.kind == "llama3":
            turns = self.trained * plain / (2 * math.pi)
            return np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
        first, last = math.floor(self._pair(self.fast)), math.ceil(self._pair(self.slow))
        first, last = max(first, 0), min(last, self.width - 1)
        pairs = np.arange(self.width // 2)
        return 1 - np.clip((pairs - first) / max(last - first, 0.001), 0, 1)

    def _pair(self, turns: float) -> float:
        """Returns the (real) pair that makes `turns` rotations within the trained context."""
        wave = self.trained / (turns * 2 * math.pi)
        return self.width * math.log(wave) / (2 * math.log(self.base))

    def tables(self, positions: Array) -> tuple[Array, Array]:
        """Returns cosines and sines [..., s, width / 2] of positions [..., s], in f32."""
        angles = np.asarray(positions, np.float64)[..., None] * self.frequencies()
        return tuple(  # pyright: ignore[reportReturnType]
            (f(angles) * self.magnitude).astype(np.float32) for f in (np.cos, np.sin)
        )
