"""Constants: one object for each content, text that reads back to the same bits."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from stack.ir.data import Data, lookup, parse_scalar, round_bf16, scalar_text
from stack.ir.types import BF16, DTYPES, DType

FLOATS = [d for d in DTYPES.values() if d.kind == "f"]
INTEGERS = [d for d in DTYPES.values() if d.is_integer]


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


def read_back(value: Any, dtype: DType) -> None:
    text = scalar_text(value, dtype)
    held = np.asarray(value, dtype=dtype.numpy)
    again = np.asarray(parse_scalar(text, dtype), dtype=dtype.numpy)
    assert bits(again) == bits(held), (text, dtype)


def test_every_f16_and_every_bf16_reads_back() -> None:
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    for value in every.view(np.float16):
        read_back(value, DTYPES["f16"])
    for value in (every.astype(np.uint32) << 16).view(np.float32):
        read_back(value, BF16)


@pytest.mark.parametrize(("dtype", "integer"), [("f32", np.uint32), ("f64", np.uint64)])
def test_random_bit_patterns_read_back(dtype: str, integer: Any) -> None:
    rng = np.random.default_rng(0)
    width = np.dtype(integer).itemsize
    patterns = np.frombuffer(rng.bytes(width * 20_000), dtype=integer)
    for value in patterns.view(DTYPES[dtype].numpy):
        read_back(value, DTYPES[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_odd_floats(dtype: DType) -> None:
    info = ml_dtypes.finfo("bfloat16") if dtype is BF16 else np.finfo(dtype.numpy)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, 1e-5, 12345.0, 1 / 3]
    for value in [*odd, info.max, info.min, info.tiny, info.smallest_subnormal, info.eps]:
        read_back(round_bf16(np.float32(value)) if dtype is BF16 else value, dtype)
    assert scalar_text(-0.0, dtype) == "-0.0"
    assert scalar_text(np.nan, dtype) == "nan"
    assert scalar_text(-np.inf, dtype) == "-inf"


@pytest.mark.parametrize("dtype", ["c64", "c128"])
def test_complex(dtype: str) -> None:
    kind = DTYPES[dtype]
    payload = np.uint32(0x7FC12345).view(np.float32)
    for real in (0.0, -0.0, 1.5, np.inf, np.nan, payload):
        for imag in (0.0, -0.0, -2.5, -np.inf, np.nan, payload):
            value = np.empty((), dtype=kind.numpy)
            value.real, value.imag = real, imag
            read_back(value, kind)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    for value in (limits.min, limits.max, 0, 1, 7):
        read_back(value, dtype)
    for outside in (limits.min - 1, limits.max + 1):
        with pytest.raises(ValueError, match="does not fit"):
            parse_scalar(str(outside), dtype)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("nan.0", "f32"),
        ("nan.7f800000", "f32"),
        ("nan.fffffffff", "f32"),
        ("nan.zz", "f32"),
        ("1e999", "f32"),
        ("1e999", "f64"),
        ("70000", "f16"),
        ("1e40~0.0", "c64"),
        ("yes", "bool"),
        ("1.5", "i32"),
        ("inf", "i32"),
        ("nan", "bool"),
        ("9" * 5000, "i64"),
        ("", "f32"),
    ],
)
def test_text_that_is_no_number(text: str, dtype: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_scalar(text, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3), (5, 7)])
def test_interned_identity(dtype: DType, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 2, shape).astype(dtype.numpy)
    first, second = Data(array, dtype), Data(array.copy(order="F"), dtype)
    assert first is second
    assert first.shape == shape
    assert first.array.shape == shape
    assert first.array.dtype == np.dtype(dtype.numpy)
    assert not first.array.flags.writeable
    assert (first.array == array).all()
    assert first.size == array.size
    other = next(d for d in DTYPES.values() if d is not dtype)
    assert Data(array.astype(other.numpy), other) is not first


def test_contents_differ_by_bits_not_by_equality() -> None:
    f32 = DTYPES["f32"]
    plus, minus = Data(np.float32(0.0), f32), Data(np.float32(-0.0), f32)
    assert plus is not minus
    quiet = np.uint32(0x7FC00000).view(np.float32)
    other = np.uint32(0x7FC00001).view(np.float32)
    assert Data(quiet, f32) is Data(np.float32(np.nan), f32)
    assert Data(quiet, f32) is not Data(other, f32)
    assert Data(np.zeros((2, 3)), f32) is not Data(np.zeros((3, 2)), f32)
    assert Data(np.zeros((0, 3)), f32) is not Data(np.zeros((3, 0)), f32)


def test_source_array_may_change_afterwards() -> None:
    array = np.arange(4, dtype=np.int64)
    data = Data(array, DTYPES["i64"])
    array[0] = 99
    assert data.array.tolist() == [0, 1, 2, 3]


def test_big_constants_are_found_by_digest_while_alive() -> None:
    array = np.arange(1000, dtype=np.float32)
    data = Data(array, DTYPES["f32"])
    digest = data.digest
    assert lookup(digest) is data
    assert str(data) == f"data<f32[1000], {digest}>"
    assert Data(array.reshape(10, 100), DTYPES["f32"]).digest != digest
    assert Data(array.view(np.int32), DTYPES["i32"]).digest != digest
    del data
    gc.collect()
    assert lookup(digest) is None


def test_bf16_rounds_as_ml_dtypes_does() -> None:
    rng = np.random.default_rng(2)
    patterns = np.frombuffer(rng.bytes(400_000), dtype=np.uint32).view(np.float32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    for values in (patterns, ties, (ties.view(np.uint32) + 1).view(np.float32)):
        with np.errstate(all="ignore"):
            expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
        got = round_bf16(values)
        same = got.view(np.uint32) == expected.view(np.uint32)
        assert (same | np.isnan(values)).all()
        assert (np.isnan(got) == np.isnan(values)).all()
        assert not (got.view(np.uint32) & 0xFFFF).any()  # nan payloads too are bf16 values


def test_bf16_rounding_keeps_shape_and_layout_does_not_matter() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    assert round_bf16(array).tolist() == array.tolist()
    assert round_bf16(np.float32(np.nan)).shape == ()
    assert round_bf16(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert (Data(np.float32(1.0000001), BF16).array == 1.0).all()
