"""Matmuls of 8-bit codes for Hopper, with scales per tensor, per row or per block of 128.

The kernel is that of `specialized_gluon.py`. With few rows it is bound by memory. With many it is
bound by power, and by adding block sums, which the matmuls of the other warp group overlap in part.
"""

from __future__ import annotations

import torch

from stack.ops.gemm.specialized_gluon import product as multiplied
from stack.ops.gemm.tiles import Config

Tensor = torch.Tensor


def product(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor,
    format: str = "e4m3", block: int = 128,
    config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """x weight^T, times scales per tensor, row or block of 128, depending on weight_scale's rank.

    Args:
        x: [..., k], int8 or E4M3 codes; all operands are dense; k is a multiple of 16.
        weight: [n, k] of the same type; a row of the result is a multiple of 16 bytes.
        x_scale: f32, [], [...] or [..., k / 128].
        weight_scale: [], [n] or [n / 128, k / 128].
    """
    codes = torch.int8 if x.dtype is torch.int8 else torch.float8_e4m3fn
    rows = x.view(codes).view(-1, x.shape[-1])
    if not weight_scale.ndim:
        x_scale = x_scale.expand(len(rows)).contiguous()
        weight_scale = weight_scale.expand(len(weight)).contiguous()
    y = multiplied(rows, weight.view(codes), out, (x_scale, weight_scale), config=config)
    return y.view(*x.shape[:-1], len(weight))
