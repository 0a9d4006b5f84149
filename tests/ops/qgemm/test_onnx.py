"""Quantized products against the cases that the ONNX package generates, with expected outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stack.ops.qgemm import w8a8
from stack.ops.qgemm.formats import FORMATS, Minifloat

onnx: Any = pytest.importorskip("onnx")

from onnx.backend.test.case.node import collect_testcases  # noqa: E402

Array = np.ndarray


def cases(op: str) -> Iterator[tuple[str, dict[str, Any], list[Array], Array]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        node = case.model.graph.node[0]
        if node.op_type != op or len(case.model.graph.node) > 1:
            continue
        at = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs, outputs = case.data_sets[0]
        yield case.name, at, list(map(array, inputs)), array(outputs[0])


def array(held: Any) -> Array:
    """Types that NumPy has not come as messages."""
    is_message = isinstance(held, onnx.TensorProto)
    return np.asarray(onnx.numpy_helper.to_array(held) if is_message else held)


def centred(x: Array, zero: Array) -> Array:
    """Integers less their zero point, which an 8-bit product takes: those of the cases fit."""
    made = np.asarray(x, np.int32) - np.asarray(zero, np.int32)
    return made.astype(np.int16)


def product(x: Array, y: Array) -> Array:
    """Sums of products by `w8a8`, of integers of 9 bits in two parts of 8."""
    half = [np.clip(p, -128, 127).astype(np.int8) for p in (x >> 1, x - (x >> 1))]
    other = [np.clip(p, -128, 127).astype(np.int8) for p in (y >> 1, y - (y >> 1))]
    ones = np.ones(x.shape[:-1]), np.ones(y.shape[-1])
    return sum(w8a8(a, np.ascontiguousarray(b.T), *ones) for a in half for b in other)


def in_planes(x: Array, y: Array) -> Array:
    """Stacks of matrices, one after the other."""
    if y.ndim == 2:
        return product(x, y)
    return np.stack([product(a, b) for a, b in zip(x, y, strict=True)])


def test_integer_products() -> None:
    count = 0
    for name, _, (x, y, x_zero, y_zero), expected in cases("MatMulInteger"):
        found = in_planes(centred(x, x_zero), centred(y, y_zero))
        np.testing.assert_array_equal(found, expected, err_msg=name)
        count += 1
    assert count >= 1


def test_quantized_products() -> None:
    count = 0
    for name, _, inputs, expected in cases("QLinearMatMul"):
        x, x_scale, x_zero, y, y_scale, y_zero, out_scale, out_zero = inputs
        sums = in_planes(centred(x, x_zero), centred(y, y_zero))
        scaled = sums * np.float64(x_scale) * np.float64(y_scale) / np.float64(out_scale)
        info = np.iinfo(expected.dtype)
        found = np.clip(np.rint(scaled) + np.asarray(out_zero, np.int32), info.min, info.max)
        np.testing.assert_array_equal(found.reshape(expected.shape), expected, err_msg=name)
        count += 1
    assert count >= 4


FLOATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float4_e2m1fn": "e2m1"}


def decoded(x: Array) -> Array:
    """The numbers of codes: by our formats, where the element type is one of them."""
    name = FLOATS.get(x.dtype.name)
    if name is None:
        return x.astype(np.float32)
    made: Minifloat = FORMATS[name]
    return made.decode(x.view(np.uint8) & ((1 << made.bits) - 1))


def test_what_codes_stand_for() -> None:
    seen: set[str] = set()
    for name, at, (x, scale, *zero), expected in cases("DequantizeLinear"):
        axis, block = at.get("axis", 1), at.get("block_size", 0)
        shape = [1] * x.ndim
        if block:
            scale, *zero = (np.repeat(a, block, axis) for a in (scale, *zero))
        elif scale.ndim == 1:
            shape[axis] = len(scale)
            scale, *zero = (np.reshape(a, shape) for a in (scale, *zero))
        less = decoded(zero[0]) if zero else np.float32(0)
        found = (decoded(x) - less) * scale.astype(np.float32)
        np.testing.assert_allclose(found.astype(expected.dtype), expected, rtol=1e-3, err_msg=name)
        seen.add(x.dtype.name)
    assert FLOATS.keys() <= seen
