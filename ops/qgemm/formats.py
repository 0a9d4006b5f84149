"""Narrow number formats, bit by bit, in NumPy: the values of their codes, and rounding.

A format is the list of its nonnegative values, by code; a sign bit may precede the code. Rounding
is to the nearest value, and on a tie to the even code. Sources: Micikevicius et al., "FP8 formats
for deep learning", 2022; OCP Microscaling Formats 1.0, 2023; Dettmers et al., "QLoRA", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Minifloat:
    """A float with few bits.

    Attributes:
        finite: number of codes, without sign, that are finite numbers.
        overflow: the code of nan or inf that replaces numbers rounded past the largest; None
            saturates at the largest.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    finite: int
    overflow: int | None = None
    nan: int | None = None

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @cached_property
    def values(self) -> Array:
        """The finite values by code, without signs, and the value that the next code would have."""
        codes = np.arange(self.finite + 1)
        exponent, mantissa = codes >> self.mantissa_bits, codes % (1 << self.mantissa_bits)
        is_normal = exponent > 0
        whole = mantissa + (is_normal << self.mantissa_bits)
        scale = np.maximum(exponent, 1) - self.bias - self.mantissa_bits
        return np.ldexp(whole.astype(np.float64), scale)

    @property
    def largest(self) -> float:
        return float(self.values[self.finite - 1])

    @cached_property
    def table(self) -> tuple[float, ...]:
        """The value of each code."""
        return tuple(self.decode(np.arange(1 << self.bits)).tolist())

    def encode(self, x: Array, saturate: bool = False) -> Array:
        """Returns the codes of numbers, as uint8. `saturate`: larger numbers become the largest."""
        size = np.abs(np.asarray(x, np.float64))
        code = nearest(size, self.values)
        past = self.finite - 1 if saturate or self.overflow is None else self.overflow
        code = np.where(code < self.finite, code, past)
        if self.nan is not None:
            code = np.where(np.isnan(size), self.nan, code)
        return (code + (np.signbit(x) << (self.bits - 1))).astype(np.uint8)

    def decode(self, codes: Array) -> Array:
        """The values of codes, as f32."""
        sign = np.where(codes >> (self.bits - 1) & 1, -1.0, 1.0)
        size = codes & ((1 << (self.bits - 1)) - 1)
        held = np.append(self.values[: self.finite], [np.nan] * (1 << (self.bits - 1)))
        if self.overflow is not None and self.overflow != self.nan:
            held[self.overflow] = np.inf
        return (sign * held[size]).astype(np.float32)

    def round(self, x: Array, saturate: bool = False) -> Array:
        """Rounds to the nearest values of the format, as f32."""
        return self.decode(self.encode(x, saturate))


def nearest(x: Array, values: Array) -> Array:
    """The index of the nearest of some ascending values; on a tie, the even index."""
    above = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    below = above - 1
    low, high = x - values[below], values[above] - x
    is_above = (low > high) | ((low == high) & (above % 2 == 0))
    return np.where(is_above, above, below)


E4M3 = Minifloat("e4m3", 4, 3, bias=7, finite=127, overflow=127, nan=127)
E5M2 = Minifloat("e5m2", 5, 2, bias=15, finite=124, overflow=124, nan=126)
E3M2 = Minifloat("e3m2", 3, 2, bias=3, finite=32)
E2M3 = Minifloat("e2m3", 2, 3, bias=1, finite=32)
E2M1 = Minifloat("e2m1", 2, 1, bias=1, finite=8)
FORMATS = {f.name: f for f in (E4M3, E5M2, E3M2, E2M3, E2M1)}


def exponents() -> tuple[float, ...]:
    """E8M0: the powers of two that scale blocks, by code; the last code is nan."""
    return (*(2.0**e for e in range(-127, 128)), float("nan"))


def normal_float(bits: int = 4) -> Array:
    """NF4: quantiles of a normal distribution at equal probabilities, with 0, from -1 to 1."""
    half, end = 1 << (bits - 1), 0.9677083  # the end that QLoRA uses
    inverse = NormalDist().inv_cdf
    above = [inverse(p) for p in np.linspace(end, 0.5, half + 1)[:-1]]
    below = [-inverse(p) for p in np.linspace(end, 0.5, half)[:-1]]
    values = np.array(sorted([*above, 0.0, *below]))
    return values / values.max()


NF4: tuple[float, ...] = tuple(normal_float().astype(np.float32).tolist())


def round_mantissa(x: Array, bits: int) -> Array:
    """Rounds f32 to a mantissa of `bits`, to nearest even: 7 for bf16, 10 for TF32."""
    drop = 23 - bits
    code = np.ascontiguousarray(x, np.float32).view(np.uint32)
    half = np.uint32((1 << (drop - 1)) - 1) + (code >> np.uint32(drop) & np.uint32(1))
    kept = (code + half) & np.uint32(~((1 << drop) - 1) & 0xFFFFFFFF)
    return np.where(np.isfinite(x), kept.view(np.float32), x).astype(np.float32)


MX_BLOCK = 32  # elements that share a scale
NV_BLOCK = 16


def mx_encode(x: Array, element: Minifloat) -> tuple[Array, Array]:
    """Returns codes of blocks of 32 along the last axis, and each block's scale exponent plus 127.

    The scale is the power of two of the largest element, divided by that of the format's largest.
    Raises ValueError if 32 does not divide the axis.
    """
    if x.shape[-1] % MX_BLOCK:
        raise ValueError(f"blocks of {MX_BLOCK} do not divide an axis of {x.shape[-1]}")
    blocks = x.reshape(*x.shape[:-1], -1, MX_BLOCK).astype(np.float64)
    top = np.abs(blocks).max(-1)
    power = np.frexp(np.where(top > 0, top, 1))[1] - 1 - (np.frexp(element.largest)[1] - 1)
    power = np.clip(power, -127, 127)
    codes = element.encode(np.ldexp(blocks, -power[..., None]), saturate=True)
    return codes.reshape(x.shape), (power + 127).astype(np.uint8)


def mx_decode(codes: Array, scales: Array, element: Minifloat) -> Array:
    """The numbers that codes and scales represent, as f32."""
    blocks = element.decode(codes).reshape(*scales.shape, MX_BLOCK)
    return np.ldexp(blocks, scales.astype(np.int32)[..., None] - 127).reshape(codes.shape)


def nvfp4_encode(x: Array) -> tuple[Array, Array, np.float32]:
    """Returns E2M1 codes, E4M3 scales of blocks of 16, and one f32 scale for all of `x [n, k]`.

    The scale for all makes the largest block scale the largest E4M3 number. Raises ValueError if 16
    does not divide the last axis. Source: NVIDIA, "Pretraining LLMs with NVFP4", 2025.
    """
    if x.shape[-1] % NV_BLOCK:
        raise ValueError(f"blocks of {NV_BLOCK} do not divide an axis of {x.shape[-1]}")
    blocks = x.reshape(*x.shape[:-1], -1, NV_BLOCK).astype(np.float64)
    top = np.abs(blocks).max(-1)
    scale = np.float32(max(top.max(), np.finfo(np.float32).tiny) / (E2M1.largest * E4M3.largest))
    scales = E4M3.encode(top / E2M1.largest / scale, saturate=True)
    step = E4M3.decode(scales).astype(np.float64) * scale
    codes = E2M1.encode(blocks / np.where(step > 0, step, 1)[..., None], saturate=True)
    return codes.reshape(x.shape), scales, scale


def nvfp4_decode(codes: Array, scales: Array, scale: np.float32) -> Array:
    """The numbers that codes and both scales represent, as f32."""
    blocks = E2M1.decode(codes).reshape(*scales.shape, NV_BLOCK)
    return (blocks * (E4M3.decode(scales) * scale)[..., None]).reshape(codes.shape)
