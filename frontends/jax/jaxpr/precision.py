"""JAX's precision settings for rounding f32 operands of matmuls on a GPU."""

from __future__ import annotations

from typing import Any

from jax.lax import DotAlgorithmPreset, Precision

_ROUNDED = (
    *(Precision.DEFAULT, Precision.HIGH),
    *(DotAlgorithmPreset.DEFAULT, DotAlgorithmPreset.TF32_TF32_F32),
)


def rounds(asked: Any) -> bool:
    """True if an equation's `precision` allows f32 operands to be rounded to TF32.

    XLA does so by default on a GPU; see `jax.lax.Precision`.
    """
    both = asked if isinstance(asked, tuple) else (asked,)
    return all(p is None or p in _ROUNDED for p in both)
