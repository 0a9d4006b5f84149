from __future__ import annotations

from typing import Any

import numpy as np

from stack.demos.course.answers import ask, equal, show
from stack.ops.qgemm import w4a16

GROUP = 8


def _weights() -> np.ndarray:
    made = np.random.default_rng(3).standard_normal((6, 32)).astype(np.float32)
    made[2, :GROUP] = 0
    made[3, GROUP : 2 * GROUP] *= 100
    return made


def _quantized(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales, as `quantize` defines them."""
    parts = weight.reshape(len(weight), -1, GROUP)
    top = np.abs(parts).max(-1)
    scales = np.where(top > 0, top / 7, 1).astype(np.float32)
    codes = np.clip(np.rint(parts / scales[..., None]), -8, 7)
    return codes.reshape(weight.shape).astype(np.int8), scales


def check_quantize(student: Any) -> None:
    """quantize is off by half a step at most, and does not divide by zero

    Hint: reshape to [n, k / group, group], so that the last axis is a group. The scale is the
    largest absolute value / 7, or 1 where that is 0. The codes are np.rint(part / scale).
    """
    weight = _weights()
    question = ask(student.quantize, weight, GROUP, given=f"weight, {GROUP}")
    codes, scales = question.answer("codes and scales")
    wanted_codes, wanted_scales = _quantized(weight)
    codes, scales = np.asarray(codes), np.asarray(scales)
    for name, found, wanted in (("codes", codes, wanted_codes), ("scales", scales, wanted_scales)):
        kind = f"{name} {wanted.shape}"
        if np.shape(found) != wanted.shape:
            raise question.wrong(kind, f"{name} {np.shape(found)}")
    if codes.dtype != np.int8:
        raise question.wrong("codes of int8", f"codes of {codes.dtype}")
    if not equal(wanted_scales, scales, 1e-5):
        row, group = np.argwhere(~np.isclose(scales, wanted_scales, rtol=1e-5))[0]
        numbers = weight[row, group * GROUP : (group + 1) * GROUP]
        place = f"for group {show(numbers)}"
        raise question.wrong(
            f"scale {wanted_scales[row, group]:.5g} {place}", f"{scales[row, group]:.5g}"
        )
    steps = np.repeat(scales, GROUP, axis=1)
    error = np.abs(codes.astype(np.float32) - weight / steps)
    if error.max() > 0.501 or np.abs(codes.astype(int)).max() > 8:
        row, column = np.unravel_index(error.argmax(), error.shape)
        exact = weight[row, column] / steps[row, column]
        weight_text = f"{weight[row, column]:.4g} of scale {steps[row, column]:.4g}"
        expected = f"code {wanted_codes[row, column]} for weight {weight_text}: near {exact:.3f}"
        raise question.wrong(expected, f"code {codes[row, column]}")


def check_pack(student: Any) -> None:
    """pack gives the bytes that the operator w4a16 reads

    Hint: the two halves of a group are (codes + 8).reshape(n, k / group, 2, group / 2): the first
    half is the low half of the bytes, the second is shifted left by 4.
    """
    few = np.array([[1, 2, 3, 4, 5, 6, 7, -8]], np.int8)
    ask(student.pack, few, GROUP).equals(np.array([[217, 234, 251, 12]], np.uint8))
    two_groups = np.concatenate([few, few[:, ::-1]], axis=1)
    ask(student.pack, two_groups, GROUP).equals(
        np.array([[217, 234, 251, 12, 192, 191, 174, 157]], np.uint8)
    )
    codes, scales = _quantized(_weights())
    held = (codes.astype(np.int16) + 8).astype(np.uint8).reshape(6, 4, 2, GROUP // 2)
    wanted = (held[:, :, 0] | held[:, :, 1] << 4).reshape(6, 16)
    question = ask(student.pack, codes, GROUP)
    packed = np.asarray(question.answer(show(wanted)))
    question.equals(wanted)
    if packed.dtype != np.uint8:
        raise question.wrong("bytes of uint8", str(packed.dtype))
    x = np.random.default_rng(4).standard_normal((3, 32)).astype(np.float32)
    product = x.astype(np.float64) @ (codes * np.repeat(scales, GROUP, axis=1)).T
    assert np.allclose(w4a16(x, packed, scales), product, atol=1e-2), "w4a16 reads other numbers"


def check_smooth(student: Any) -> None:
    """smooth keeps the product, and divides the outliers between both sides by alpha

    Hint: np.abs(x).max(0) ** alpha / np.abs(weight).max(0) ** (1 - alpha)
    """
    x = np.array([[1.0, -4.0, 300.0], [-2.0, 3.0, -900.0]])
    weight = np.array([[0.5, -1.0, 0.25], [-2.0, 0.5, 0.125]])
    for alpha in (0.5, 0.8):
        wanted = np.abs(x).max(0) ** alpha / np.abs(weight).max(0) ** (1 - alpha)
        ask(student.smooth, x, weight, alpha).equals(wanted)
