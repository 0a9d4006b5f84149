from __future__ import annotations

from typing import Any

import numpy as np

from stack.ops.qgemm import w4a16


def _weights() -> np.ndarray:
    made = np.random.default_rng(3).standard_normal((6, 32)).astype(np.float32)
    made[2, :8] = 0
    return made


def check_quantize(student: Any) -> None:
    """quantize is off by half a step at most, and does not divide by zero"""
    weight = _weights()
    codes, scales = student.quantize(weight, 8)
    assert codes.dtype == np.int8
    assert scales.shape == (6, 4)
    assert -8 <= codes.min() <= codes.max() <= 7
    steps = np.repeat(scales, 8, axis=1)
    error = np.abs(codes * steps - weight)
    assert (error <= steps / 2 * 1.001).all(), "some weight is off by more than half a step"
    assert (scales[2, 0], codes[2, :8].any()) == (1, False)


def check_pack(student: Any) -> None:
    """pack gives what the operator w4a16 reads"""
    weight = _weights()
    codes, scales = student.quantize(weight, 8)
    x = np.random.default_rng(4).standard_normal((3, 32)).astype(np.float32)
    wanted = x.astype(np.float64) @ (codes * np.repeat(scales, 8, axis=1)).astype(np.float64).T
    packed = student.pack(codes, 8)
    assert packed.dtype == np.uint8
    assert np.allclose(w4a16(x, packed, scales), wanted, atol=1e-4)


def check_smooth(student: Any) -> None:
    """smooth keeps the product and evens out both sides"""
    rng = np.random.default_rng(5)
    x, weight = rng.standard_normal((8, 16)), rng.standard_normal((4, 16))
    x[:, 3] *= 100
    s = student.smooth(x, weight)
    assert np.allclose((x / s) @ (weight * s).T, x @ weight.T)
    assert np.allclose(np.abs(x / s).max(0), np.abs(weight * s).max(0))
