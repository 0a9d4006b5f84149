"""Rows of x rounded to 8-bit integers by their own largest size, for the product of codes.

What limits it: bytes, x twice where a row does not stay in the L1 cache, 5 bytes of memory for two
numbers of 16 bits. The product has the rate of 8-bit floats, so that this is what is left to gain.
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
    """One row: its largest size, then its codes."""
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
        # adding 1.5 * 2^23 leaves no bits after the point: the nearest integer, ties to even
        nearest = tl.div_rn(x, scale) + 12582912.0 - 12582912.0
        tl.store(codes_ptr + row + at + inside, nearest.to(tl.int8), is_inside)


def codes_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x [..., k]` as int8, and a scale in f32 for each row: 1 / 127 of its largest size."""
    depth = x.shape[-1]
    codes = torch.empty_like(x, dtype=torch.int8)
    scales = x.new_empty(x.shape[:-1], dtype=torch.float32)
    launch: Any = codes_kernel[(scales.numel(),)]
    launch(x, codes, scales, depth, min(triton.next_power_of_2(depth), 4096), num_warps=8)
    return codes, scales


def w8a8_dynamic(x: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """`x [..., k]` floats, `weight [n, k]` int8, `weight_scale [n]` of the type of x, dense."""
    codes, scales = codes_of(x)
    return product(codes, weight, scales, weight_scale, out=x.dtype)
