"""Matmuls of rows with the weights of their experts, in one launch; rows are in expert order.

A program finds its expert by counting tiles: tiles cover the rows of an expert, the last one only
partly. The kernel is the one for single matmuls, `specialized_gluon.py`.

With many rows per expert the limits are those of a single matmul. With few rows, it is bound by
reading the weights of each expert that has any row, and by the unused part of a tile (of 128 rows,
an expert may use 1).
"""

from __future__ import annotations

import torch

from stack.ops.gemm.specialized_gluon import product
from stack.ops.gemm.tiles import Config

Tensor = torch.Tensor


def grouped(x: Tensor, weight: Tensor, sizes: Tensor, config: Config | None = None) -> Tensor:
    """`grouped_gemm` of dense `x [s, k]`, `weight [e, n, k]` of one 16-bit type."""
    return product(x, weight, x.dtype, None, sizes.int(), config)


def grouped_fp8(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, sizes: Tensor,
    format: str = "e4m3", config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`grouped_gemm_fp8` of E4M3 codes; `x_scale [s]`, `weight_scale [e, n]` in f32."""
    left, right = (t.view(torch.float8_e4m3fn) for t in (x, weight))
    return product(left, right, out, (x_scale, weight_scale), sizes.int(), config)
