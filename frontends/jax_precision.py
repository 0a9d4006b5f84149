"""What JAX says that products of f32 may be rounded to on a GPU."""

from __future__ import annotations

from typing import Any

from jax.lax import DotAlgorithmPreset, Precision

_ROUNDED = (
    *(Precision.DEFAULT, Precision.HIGH),
    *(DotAlgorithmPreset.DEFAULT, DotAlgorithmPreset.TF32_TF32_F32),
)


def rounds(asked: Any) -> bool:
    """Whether a `precision` of an equation lets f32 operands be rounded to TF32.

    That is what XLA does on a GPU where nothing is asked for; see `jax.lax.Precision`.
    """
    both = asked if isinstance(asked, tuple) else (asked,)
    return all(p is None or p in _ROUNDED for p in both)
