"""Arithmetic of unsigned 64-bit integers, which torch lacks, on the same bits in int64."""

from __future__ import annotations

from typing import Any

import torch

from stack.ir.types import DType

Tensor = torch.Tensor
TOP = -(1 << 63)  # the top bit
MOST = (1 << 63) - 1  # all bits but the top one


def scalar(value: Any, dtype: DType) -> Any:
    """A number of an element type, of u64 the int64 with the same bits."""
    return value - (1 << 64) if dtype.name == "u64" and value > MOST else value


def ordered(x: Tensor, dtype: DType) -> Tensor:
    """Bits whose signed order is that of the element type, or such bits back again.

    Flipping the top bit does both for u64. Other types have torch's own order.
    """
    return x ^ TOP if dtype.name == "u64" else x


def quotient(x: Tensor, y: Tensor) -> Tensor:
    """x / y; all bits are set where y is 0."""
    is_positive = y > 0
    by = torch.where(is_positive, y, torch.ones_like(y))
    even = torch.div((x >> 1) & MOST, by, rounding_mode="trunc") << 1
    rest = x - even * by  # below 2 * by, as unsigned bits
    whole = even + ((rest ^ TOP) >= (by ^ TOP))
    # a divisor with the top bit set goes into x at most once
    once = ((x ^ TOP) >= (y ^ TOP)).to(torch.int64)
    return torch.where(is_positive, whole, torch.where(y == 0, torch.full_like(once, -1), once))


def remainder(x: Tensor, y: Tensor) -> Tensor:
    """The rest of x / y; x where y is 0."""
    return torch.where(y == 0, x, x - quotient(x, y) * y)


def power(x: Tensor, y: Tensor) -> Tensor:
    """The low 64 bits of x ** y.

    An odd number to the power of the top bit is 1. An even one to the power of 64 or more is 0.
    """
    is_zero = (y < 0) & ((x & 1) == 0)
    return torch.where(is_zero, torch.zeros_like(x), torch.pow(x, y & MOST))


def shifted_right(x: Tensor, y: Tensor) -> Tensor:
    """x >> y with zeros from the left; 0 where y is 64 or more."""
    step = y.clamp(min=1, max=63)
    moved = torch.bitwise_right_shift((x >> 1) & MOST, step - 1)
    is_inside = (y >= 0) & (y < 64)
    return torch.where(y == 0, x, torch.where(is_inside, moved, torch.zeros_like(moved)))


def to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest floats: half of a number with the top bit set keeps its last bit for rounding."""
    half = ((x >> 1) & MOST) | (x & 1)
    return torch.where(x < 0, half.to(dtype) * 2, x.to(dtype))


def of_float(x: Tensor) -> Tensor:
    """The integer parts of floats from 0 to below 2 ** 64."""
    wide = x.to(torch.float64)
    is_big = wide >= 2.0**63
    low = torch.where(is_big, wide - 2.0**63, wide).to(torch.int64)
    return torch.where(is_big, low ^ TOP, low)
