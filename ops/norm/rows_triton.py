"""Norms of rows in Triton: a program holds a row in registers, so that memory sees it once.

What limits them is memory: each element is read once and written once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, size, eps, COLUMNS: tl.constexpr):
    """One row."""
    columns = tl.arange(0, COLUMNS)
    inside = columns < size
    start = tl.program_id(0).to(tl.int64) * size
    x = tl.load(x_ptr + start + columns, inside, 0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, inside, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / size + eps)
    tl.store(y_ptr + start + columns, x * scale * w, inside)


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, size, eps, COLUMNS: tl.constexpr):
    """One row."""
    columns = tl.arange(0, COLUMNS)
    inside = columns < size
    start = tl.program_id(0).to(tl.int64) * size
    x = tl.load(x_ptr + start + columns, inside, 0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, inside, 0.0).to(tl.float32)
    b = tl.load(b_ptr + columns, inside, 0.0).to(tl.float32)
    centered = tl.where(inside, x - tl.sum(x, 0) / size, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centered * centered, 0) / size + eps)
    tl.store(y_ptr + start + columns, centered * scale * w + b, inside)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, size, COLUMNS: tl.constexpr):
    """One row."""
    columns = tl.arange(0, COLUMNS)
    inside = columns < size
    start = tl.program_id(0).to(tl.int64) * size
    x = tl.load(x_ptr + start + columns, inside, float("-inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + start + columns, powers / tl.sum(powers, 0), inside)


def _shape(x: Tensor) -> tuple[Tensor, int, int, int, int]:
    """A result, the number and size of rows, the tile and warps that hold a row."""
    size = x.shape[-1]
    rows = x.numel() // size if size else 0
    columns = triton.next_power_of_2(max(size, 1))
    return torch.empty_like(x), rows, size, columns, min(max(columns // 512, 1), 16)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`x [..., d]`, `weight [d]`, dense."""
    y, rows, size, columns, warps = _shape(x)
    if rows:
        rms_norm_kernel[(rows,)](x, weight, y, size, eps, columns, num_warps=warps)
    return y


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """`x [..., d]`, `weight [d]`, `bias [d]`, dense."""
    y, rows, size, columns, warps = _shape(x)
    if rows:
        layer_norm_kernel[(rows,)](x, weight, bias, y, size, eps, columns, num_warps=warps)
    return y


def softmax(x: Tensor) -> Tensor:
    """`x [..., d]`, dense."""
    y, rows, size, columns, warps = _shape(x)
    if rows:
        softmax_kernel[(rows,)](x, y, size, columns, num_warps=warps)
    return y
