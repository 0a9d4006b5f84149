"""Products of 8-bit floats with few rows, in Triton: scales of blocks of 128, of rows or of all.

Tiles come through the tensor memory accelerator. Where blocks have scales, a block's sum is scaled
and added in f32 (DeepSeek-V3, 2024, section 3.3.2). `gemm8_gluon.py` has more than 64 rows.

What limits it: the bytes of weights, each of which is read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

Tensor = torch.Tensor
BLOCK = 128


@dataclass(frozen=True)
class Config:
    """Tiles of `rows` x `columns`, 128 of k at a time, in bands of `group` tiles.

    Where squares of weights have scales, `columns` divides 128.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    group: int = 8


@triton.jit
def fp8_kernel(
    x_desc, w_desc, y_desc, x_scale_ptr, w_scale_ptr, rows, columns, depth, across,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    BLOCKED: tl.constexpr,
):  # fmt: skip
    """One tile. Scales: `[rows, across]`, `[columns / 128, across]`, or `[rows]`, `[columns]`."""
    down, wide = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    # bands of GROUP rows of tiles share what they read in the L2 cache
    first = tl.program_id(0) // (GROUP * wide) * GROUP
    high = tl.minimum(down - first, GROUP)
    inside = tl.program_id(0) % (GROUP * wide)
    at_row = (first + inside % high) * ROWS
    at_column = inside // high * COLUMNS
    row, column = at_row + tl.arange(0, ROWS), at_column + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(tl.cdiv(depth, DEPTH)):
        x = x_desc.load([at_row, step * DEPTH])
        w = w_desc.load([at_column, step * DEPTH])
        if BLOCKED:
            left = tl.load(x_scale_ptr + row * across + step, row < rows, 0.0)
            right = tl.load(w_scale_ptr + at_column // 128 * across + step)
            sums += tl.dot(x, w.T) * (left * right)[:, None]
        else:
            sums = tl.dot(x, w.T, sums)
    if not BLOCKED:
        left = tl.load(x_scale_ptr + row, row < rows, 0.0)
        right = tl.load(w_scale_ptr + column, column < columns, 0.0)
        sums *= left[:, None] * right[None, :]
    y_desc.store([at_row, at_column], sums.to(y_desc.dtype))


FEW = Config(64, 128, 4, 4)


def _launched(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, is_blocked: bool,
    config: Config | None, out: torch.dtype,
) -> Tensor:  # fmt: skip
    (columns, depth), rows = weight.shape, x.numel() // x.shape[-1]
    y = torch.empty((*x.shape[:-1], columns), dtype=out, device=x.device)
    if not y.numel():
        return y
    tile = config or FEW
    float8 = torch.float8_e4m3fn
    operands = [
        TensorDescriptor.from_tensor(x.view(float8).reshape(rows, depth), [tile.rows, BLOCK]),
        TensorDescriptor.from_tensor(weight.view(float8), [tile.columns, BLOCK]),
        TensorDescriptor.from_tensor(y.view(rows, columns), [tile.rows, tile.columns]),
    ]
    launch: Any = fp8_kernel[(-(-rows // tile.rows) * -(-columns // tile.columns),)]
    launch(
        *operands, x_scale, weight_scale, rows, columns, depth, -(-depth // BLOCK),
        tile.rows, tile.columns, BLOCK, tile.group, is_blocked,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


def fp8_block(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor,
    format: str = "e4m3", block: int = BLOCK,
    config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`x [..., k]`, `weight [n, k]` codes of E4M3, scales in f32 for 128 and 128 x 128 of them."""
    return _launched(x, weight, x_scale, weight_scale, True, config, out)


def fp8(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, format: str = "e4m3",
    config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`x_scale [...]`, `weight_scale [n]` in f32."""
    return _launched(x, weight, x_scale, weight_scale, False, config, out)


def fp8_tensor(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, format: str = "e4m3",
    config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`x_scale []`, `weight_scale []` in f32."""
    rows = x_scale.expand(x.shape[:-1]).contiguous()
    return fp8(x, weight, rows, weight_scale.expand(len(weight)).contiguous(), format, config, out)
