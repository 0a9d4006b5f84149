"""Products of rows with the weights of their experts, in one launch: rows come in expert order.

A program finds its expert by counting tiles: those of an expert cover its rows, the last one in
part. The kernel is that of a plain product, `specialized_gluon.py`.

What limits it: at many rows for each expert what limits a plain product; at few, the bytes of
weights, of which each expert that has a row at all reads its own, and the share of a tile that is
not used (128 rows for an expert with 1).
"""

from __future__ import annotations

import torch

from stack.ops.gemm.specialized_gluon import product
from stack.ops.gemm.tiles import Config

Tensor = torch.Tensor


def grouped(x: Tensor, weight: Tensor, sizes: Tensor, config: Config | None = None) -> Tensor:
    """`x [s, k]` and `weight [e, n, k]` of one 16-bit type, `sizes [e]` int32, dense."""
    return product(x, weight, x.dtype, None, sizes.int(), config)


def grouped_fp8(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, sizes: Tensor,
    format: str = "e4m3", config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`x [s, k]`, `weight [e, n, k]` codes of E4M3; `x_scale [s]`, `weight_scale [e, n]` in f32."""
    left, right = (t.view(torch.float8_e4m3fn) for t in (x, weight))
    return product(left, right, out, (x_scale, weight_scale), sizes.int(), config)
