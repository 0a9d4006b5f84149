"""Unsigned 64-bit arithmetic, which torch lacks, on the same bits in int64."""

from __future__ import annotations

from typing import Any

import torch

from stack.ir.types import DType

Tensor = torch.Tensor
TOP = -(1 << 63)  # the top bit
MOST = (1 << 63) - 1  # all bits except the top one


def scalar(value: Any, dtype: DType) -> Any:
    """Converts a number of an element type; for u64 to the int64 with the same bits."""
    return value - (1 << 64) if dtype.name == "u64" and value > MOST else value


def ordered(x: Tensor, dtype: DType) -> Tensor:
    """Maps u64 bits to int64 with the same order, and back.

    Flipping the top bit does both. Other types are returned unchanged.
    """
    return x ^ TOP if dtype.name == "u64" else x


def quotient(x: Tensor, y: Tensor) -> Tensor:
    """Computes x / y; all bits are set if y is 0."""
    is_positive = y > 0
    by = torch.where(is_positive, y, torch.ones_like(y))
    even = torch.div((x >> 1) & MOST, by, rounding_mode="trunc") << 1
    rest = x - even * by  # below 2 * by, as unsigned bits
    whole = even + ((rest ^ TOP) >= (by ^ TOP))
    # a divisor with the top bit set goes into x at most once
    once = ((x ^ TOP) >= (y ^ TOP)).to(torch.int64)
    return torch.where(is_positive, whole, torch.where(y == 0, torch.full_like(once, -1), once))


def remainder(x: Tensor, y: Tensor) -> Tensor:
    """Computes the remainder of x / y; x if y is 0."""
    return torch.where(y == 0, x, x - quotient(x, y) * y)


def power(x: Tensor, y: Tensor) -> Tensor:
    """Computes the low 64 bits of x ** y.

    An odd number to the power of the top bit is 1. An even one to the power of 64 or more is 0.
    """
    is_zero = (y < 0) & ((x & 1) == 0)
    return torch.where(is_zero, torch.zeros_like(x), torch.pow(x, y & MOST))


def shifted_right(x: Tensor, y: Tensor) -> Tensor:
    """Computes x >> y with zeros from the left; 0 if y is 64 or more."""
    step = y.clamp(min=1, max=63)
    moved = torch.bitwise_right_shift((x >> 1) & MOST, step - 1)
    is_inside = (y >= 0) & (y < 64)
    return torch.where(y == 0, x, torch.where(is_inside, moved, torch.zeros_like(moved)))


def to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds to the nearest floats; halves numbers with the top bit set, with a sticky bit."""
    half = ((x >> 1) & MOST) | (x & 1)
    return torch.where(x < 0, half.to(dtype) * 2, x.to(dtype))


def of_float(x: Tensor) -> Tensor:
    """Returns the integer parts of floats from 0 to below 2 ** 64."""
    wide = x.to(torch.float64)
    is_big = wide >= 2.0**63
    low = torch.where(is_big, wide - 2.0**63, wide).to(torch.int64)
    return torch.where(is_big, low ^ TOP, low)
