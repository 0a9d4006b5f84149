"""Rounds rows of x to 8-bit integers by their own absolute maximum, and multiplies them.

Rounding is bound by memory: x is read twice if a row does not stay in the L1 cache, and two 16-bit
numbers take 5 bytes of memory traffic. The matmul runs at the rate of 8-bit floats, so only
rounding is left to improve.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from stack.ops.qgemm.gemm8_gluon import product

Tensor = torch.Tensor


@triton.jit
def codes_kernel(x_ptr, codes_ptr, scale_ptr, depth, BLOCK: tl.constexpr):
    """Rounds one row: computes its absolute maximum, then its codes."""
    row = tl.program_id(0).to(tl.int64) * depth
    inside = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.float32)
    for at in range(0, depth, BLOCK):
        x = tl.load(x_ptr + row + at + inside, at + inside < depth, 0.0)
        most = tl.maximum(most, tl.abs(x.to(tl.float32)))
    top = tl.max(most, 0)
    scale = tl.div_rn(tl.where(top > 0, top, 1.0), 127.0)
    tl.store(scale_ptr + tl.program_id(0), scale)
    for at in range(0, depth, BLOCK):
        is_inside = at + inside < depth
        x = tl.load(x_ptr + row + at + inside, is_inside, 0.0).to(tl.float32)
        # adding 1.5 * 2^23 leaves no fraction bits: rounds to the nearest integer, ties to even
        nearest = tl.div_rn(x, scale) + 12582912.0 - 12582912.0
        tl.store(codes_ptr + row + at + inside, nearest.to(tl.int8), is_inside)


def codes_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds `x [..., k]` to int8, with an f32 scale per row: 1 / 127 of its absolute maximum."""
    depth = x.shape[-1]
    codes = torch.empty_like(x, dtype=torch.int8)
    scales = x.new_empty(x.shape[:-1], dtype=torch.float32)
    launch: Any = codes_kernel[(scales.numel(),)]
    launch(x, codes, scales, depth, min(triton.next_power_of_2(depth), 4096), num_warps=8)
    return codes, scales


def w8a8_dynamic(x: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """Multiplies floats `x [..., k]` with int8 `weight [n, k]`; `weight_scale [n]` has x's type."""
    codes, scales = codes_of(x)
    return product(codes, weight, scales, weight_scale, out=x.dtype)
