"""Rotary position embedding: the frequencies of pairs of features, and ways to reach further.

Su et al., "RoFormer", 2021. A pair i of `width / 2` turns by position * base^(-2i / width).
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
    """Frequencies of heads of `width` features.

    Attributes:
        kind: "linear" shrinks positions (Chen et al., 2023); "ntk" grows the base instead, so that
            fast pairs keep their angle (bloc97, 2023); "yarn" leaves fast pairs, shrinks slow ones,
            and sharpens scores (Peng et al., 2023); "llama3" does so by wave length, without
            sharpening (Llama Team, 2024).
        factor: how many times further.
        trained: positions that were trained on.
        fast, slow: turns within `trained` of pairs that stay, and of pairs that shrink. In between
            "yarn" goes by the pair, "llama3" by the turns.
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
            raise UsageError(f"'width': pairs of features turn, {self.width} are not pairs")
        if self.factor < 1 or self.base <= 1:
            raise UsageError(f"'factor' {self.factor} is at least 1, 'base' {self.base} above 1")

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied with."""
        return 0.1 * math.log(self.factor) + 1 if self.kind == "yarn" else 1.0

    def frequencies(self) -> Array:
        """[width / 2] in f64: the angle for each position."""
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
        """The share of each pair that keeps its angle, from 1 of fast ones to 0 of slow ones."""
        if self.kind == "llama3":
            turns = self.trained * plain / (2 * math.pi)
            return np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
        first, last = math.floor(self._pair(self.fast)), math.ceil(self._pair(self.slow))
        first, last = max(first, 0), min(last, self.width - 1)
        pairs = np.arange(self.width // 2)
        return 1 - np.clip((pairs - first) / max(last - first, 0.001), 0, 1)

    def _pair(self, turns: float) -> float:
        """The pair, as a real number, that turns so often within what was trained."""
        wave = self.trained / (turns * 2 * math.pi)
        return self.width * math.log(wave) / (2 * math.log(self.base))

    def tables(self, positions: Array) -> tuple[Array, Array]:
        """Cosines and sines [..., s, width / 2] of positions [..., s], in f32."""
        angles = np.asarray(positions, np.float64)[..., None] * self.frequencies()
        return tuple(  # pyright: ignore[reportReturnType]
            (f(angles) * self.magnitude).astype(np.float32) for f in (np.cos, np.sin)
        )
