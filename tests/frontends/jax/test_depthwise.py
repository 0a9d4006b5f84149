"""Convolutions of images with holes, in groups, and their gradients, against JAX itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack

jax: Any = pytest.importorskip("jax")
pytest.importorskip("torch_mlir")

# groups of features and of images, steps of windows, holes, gaps in windows
CASES = {
    "depthwise": (8, 1, 2, 1, 1),
    "depthwise with holes": (8, 1, 1, 2, 1),
    "two results for each channel, with holes": (4, 1, 1, 3, 1),
    "depthwise with holes and gaps": (8, 1, 2, 2, 2),
    "images in groups": (1, 4, 1, 2, 1),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    groups, images, step, holes, gaps = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 8 if groups != 4 else 4, 9, 10)).astype(np.float32)
    w = rng.normal(size=(8, x.shape[1] // groups, 3, 3)).astype(np.float32)

    def f(x: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(
            x, w, (step, step), ((1, 2), (1, 1)), (holes, holes), (gaps, gaps),
            feature_group_count=groups, batch_group_count=images,
        )  # fmt: skip
        return (y * y).sum()

    both = jax.value_and_grad(f, (0, 1))
    value, grads = stack.jit(both)(x, w)
    want, own = both(x, w)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    for got, grad in zip(grads, own, strict=True):
        np.testing.assert_allclose(got, grad, rtol=1e-4, atol=1e-4)
