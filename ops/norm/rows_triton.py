"""Norms of rows in Triton: a program keeps a row in registers.

They are bound by memory: each element is read once and written once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, size, eps, COLUMNS: tl.constexpr):
    """Computes the RMSNorm of one row of x, times the weight, in f32."""
    columns = tl.arange(0, COLUMNS)
    inside = columns < size
    start = tl.program_id(0).to(tl.int64) * size
    x = tl.load(x_ptr + start + columns, inside, 0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, inside, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / size + eps)
    tl.store(y_ptr + start + columns, x * scale * w, inside)


@triton.jit
def add_rms_norm_kernel(
    x_ptr, residual_ptr, w_ptr, y_ptr, added_ptr, size, eps, COLUMNS: tl.constexpr
):
    """Normalizes the sum of one row and its residual, and stores the sum."""
    columns = tl.arange(0, COLUMNS)
    inside = columns < size
    start = tl.program_id(0).to(tl.int64) * size
    x = tl.load(x_ptr + start + columns, inside, 0.0).to(tl.float32)
    residual = tl.load(residual_ptr + start + columns, inside, 0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, inside, 0.0).to(tl.float32)
    added = (x + residual).to(added_ptr.dtype.element_ty)
    tl.store(added_ptr + start + columns, added, inside)
    added = added.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(added * added, 0) / size + eps)
    tl.store(y_ptr + start + columns, added * scale * w, inside)


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, size, eps, COLUMNS: tl.constexpr):
    """Computes the LayerNorm of one row of x, times the weight plus the bias, in f32."""
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
    """Softmax of one row."""
    columns = tl.arange(0, COLUMNS)
    inside = columns < size
    start = tl.program_id(0).to(tl.int64) * size
    x = tl.load(x_ptr + start + columns, inside, float("-inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + start + columns, powers / tl.sum(powers, 0), inside)


def _launch(kernel: Any, x: Tensor, *rest: Any, more: tuple[Tensor, ...] = ()) -> Tensor:
    """Launches a kernel with a program per row of `x`, and returns its first result.

    `rest`: further operands, then numbers. `more`: tensors for further results.
    """
    y, size = torch.empty_like(x), x.shape[-1]
    tensors = [v for v in rest if isinstance(v, Tensor)]
    numbers = [v for v in rest if not isinstance(v, Tensor)]
    columns = 1 << max(size - 1, 0).bit_length()
    if y.numel():
        warps = min(max(columns // 512, 1), 16)
        launch = kernel[(x.numel() // size,)]
        launch(x, *tensors, y, *more, size, *numbers, columns, num_warps=warps)
    return y


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """RMSNorm of dense `x [..., d]`, with `weight [d]`."""
    return _launch(rms_norm_kernel, x, weight, eps)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """RMSNorm of `x + residual`, and the sum; `x`, `residual [..., d]`, `weight [d]`, dense."""
    added = torch.empty_like(x)
    return _launch(add_rms_norm_kernel, x, residual, weight, eps, more=(added,)), added


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """LayerNorm of dense `x [..., d]`, with `weight [d]`, `bias [d]`."""
    return _launch(layer_norm_kernel, x, weight, bias, eps)


def softmax(x: Tensor) -> Tensor:
    """Softmax of dense `x [..., d]`."""
    return _launch(softmax_kernel, x)
