"""Narrow formats against ml_dtypes, which nobody here wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stack.ops.qgemm.formats import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    Minifloat,
    mx_decode,
    mx_encode,
    nearest,
    normal_float,
    nvfp4_decode,
    nvfp4_encode,
    round_mantissa,
)

types: Any = pytest.importorskip("ml_dtypes")

PAIRS = [
    (E4M3, "float8_e4m3fn"),
    (E5M2, "float8_e5m2"),
    (E3M2, "float6_e3m2fn"),
    (E2M3, "float6_e2m3fn"),
    (E2M1, "float4_e2m1fn"),
]
PATTERNS = np.arange(1 << 16, dtype=np.uint16)


def samples(element: Minifloat) -> np.ndarray:
    """All halves between values and their neighbours, and random numbers."""
    values = element.values.astype(np.float32)
    halves = (values[1:] + values[:-1]) / 2
    around = [np.nextafter(halves, np.float32(s)) for s in (0, np.inf)]
    drawn = np.random.default_rng(0).standard_normal(4096).astype(np.float32) * values[-1] / 3
    found = np.concatenate([values, halves, *around, drawn])
    return np.concatenate([found, -found])


@pytest.mark.parametrize(("element", "name"), PAIRS, ids=[n for _, n in PAIRS])
def test_every_code_means_the_same(element: Minifloat, name: str) -> None:
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    expected = codes.view(getattr(types, name)).astype(np.float32)
    np.testing.assert_array_equal(element.decode(codes), expected)


@pytest.mark.parametrize(("element", "name"), PAIRS, ids=[n for _, n in PAIRS])
def test_numbers_round_to_the_same(element: Minifloat, name: str) -> None:
    x = samples(element)
    expected = x.astype(getattr(types, name))
    np.testing.assert_array_equal(element.round(x), expected.astype(np.float32))
    finite = np.isfinite(element.round(x))
    codes = expected.view(np.uint8) & ((1 << element.bits) - 1)
    np.testing.assert_array_equal(element.encode(x)[finite], codes[finite])


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
@pytest.mark.parametrize(("element", "name"), PAIRS, ids=[n for _, n in PAIRS])
def test_every_number_of_16_bits_rounds_to_the_same(
    element: Minifloat, name: str, source: str
) -> None:
    """All bit patterns; nan and infinity where the format has them."""
    x = PATTERNS.view(getattr(types, source, np.float16)).astype(np.float32)
    x = x if element.nan is not None else x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        expected = x.astype(getattr(types, name)).astype(np.float32)
    np.testing.assert_array_equal(element.round(x), expected)


@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_bf16_of_every_upper_half(low: int) -> None:
    """All signs, exponents and kept bits, with what is cut off below, at and above a half."""
    x = (PATTERNS.astype(np.uint32) << 16 | np.uint32(low)).view(np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(types.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_mantissa(x, 7), expected)


@pytest.mark.parametrize("low", [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF])
def test_tf32_is_the_nearest_number_of_10_bits(low: int) -> None:
    """All 2 ** 16 patterns of sign, exponent and the first 7 bits, in double precision."""
    x = (PATTERNS.astype(np.uint32) << 16 | np.uint32(0x2000 + low)).view(np.float32)
    x = x[np.isfinite(x)]
    _, power = np.frexp(x.astype(np.float64))
    step = np.ldexp(1.0, np.maximum(power - 1, -126) - 10)
    expected = np.rint(x / step) * step
    expected = np.where(np.abs(expected) < 2.0**128, expected, np.sign(x) * np.inf)
    np.testing.assert_array_equal(round_mantissa(x, 10), expected.astype(np.float32))


def test_overflow() -> None:
    beyond = np.array([464.0, 465.0, -1e9, np.inf, np.nan])
    np.testing.assert_array_equal(E4M3.round(beyond), [448, np.nan, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(E4M3.round(beyond[:4], True), [448, 448, -448, 448])
    np.testing.assert_array_equal(
        E5M2.round(np.array([61439.0, 61440.0, -1e9])), [57344, np.inf, -np.inf]
    )


def test_wide_mantissas() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, 10000, np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        expected = x.astype(types.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(round_mantissa(x, 7), expected)
    assert round_mantissa(np.float32(1 + 2**-11), 10) == 1  # a tie, to the even one
    assert round_mantissa(np.float32(1 + 3 * 2**-11), 10) == 1 + 2**-9


def test_normal_float() -> None:
    """The table that the QLoRA paper prints, in its appendix."""
    values = normal_float()
    expected = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0]
    np.testing.assert_allclose(values[:8], expected, atol=5e-5)
    np.testing.assert_allclose(values[8:11], [0.0796, 0.1609, 0.2461], atol=5e-5)
    assert values[15] == 1 and nearest(np.array([-2.0, 0.01, 2.0]), values).tolist() == [0, 7, 15]


@pytest.mark.parametrize("element", [E4M3, E2M1], ids=["e4m3", "e2m1"])
def test_blocks_share_a_scale(element: Minifloat) -> None:
    x = np.random.default_rng(0).standard_normal((3, 64)) * np.array([[1e-5], [1.0], [1e5]])
    codes, scales = mx_encode(x, element)
    assert scales.shape == (3, 2)
    scale = scales.astype(np.int32)
    power = types.float8_e8m0fnu
    np.testing.assert_array_equal(scales.view(power).astype(np.float64), 2.0 ** (scale - 127))
    found = mx_decode(codes, scales, element)
    top = np.abs(x.reshape(3, 2, 32)).max(-1, keepdims=True)
    error = np.abs(found - x).reshape(3, 2, 32) / top
    assert error.max() < (0.07 if element is E4M3 else 0.26)
    with pytest.raises(ValueError, match="blocks of 32 do not divide"):
        mx_encode(x[:, :33], element)


def test_blocks_of_16_share_a_scale_of_8_bits() -> None:
    x = np.random.default_rng(0).standard_normal((3, 64)) * np.array([[1e-3], [1.0], [1e2]])
    codes, scales, scale = nvfp4_encode(x)
    found = nvfp4_decode(codes, scales, scale)
    top = np.abs(x.reshape(3, 4, 16)).max(-1, keepdims=True)
    # of the largest: half a step of E2M1 between 4 and 6, and what E4M3 is off by
    assert (np.abs(found - x).reshape(3, 4, 16)[1:] <= top[1:] * (1 / 6 + 1 / 16)).all()
    assert E4M3.decode(scales).max() == 448
    with pytest.raises(ValueError, match="blocks of 16 do not divide"):
        nvfp4_encode(x[:, :40])
