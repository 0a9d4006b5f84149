"""Products of rows with the weights of their experts, in one launch: rows come in expert order.

A program finds its expert by counting tiles: those of an expert cover its rows, the last one in
part. Tiles come through the tensor memory accelerator, rows of the next expert among them, which
are not stored.

What limits it: at many rows for each expert what limits a plain product of that tile; at few, the
bytes of weights, of which each expert that has a row at all reads its own, and the share of a tile
that is not used (128 rows for an expert with 1).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from stack.ops.tile_config import TileConfig

Tensor = torch.Tensor


# by rows of an expert, as seen on an H200: few, some hundreds, thousands; `depth` in bytes
SMALL = TileConfig(64, 128, 128, 4, 4)
MEDIUM = TileConfig(128, 256, 128, 8, 3)
LARGE = TileConfig(128, 128, 128, 8, 4)


@triton.jit
def grouped_kernel(
    x_desc, w_desc, y_ptr, sizes_ptr, x_scale_ptr, w_scale_ptr, down, columns, depth, experts,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    EXPERTS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """One tile of the results of one expert; `down` tiles of rows are enough for all of them."""
    wide = tl.cdiv(columns, COLUMNS)
    first = tl.program_id(0) // (GROUP * wide) * GROUP
    high = tl.minimum(down - first, GROUP)
    inside = tl.program_id(0) % (GROUP * wide)
    tile, at_column = first + inside % high, inside // high * COLUMNS

    all_experts = tl.arange(0, EXPERTS)
    sizes = tl.load(sizes_ptr + all_experts, all_experts < experts, 0)
    tiles = tl.cdiv(sizes, ROWS)
    expert = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
    if expert >= experts:
        return
    is_before = all_experts < expert
    start = tl.sum(tl.where(is_before, sizes, 0), 0)
    end = start + tl.sum(tl.where(all_experts == expert, sizes, 0), 0)
    at_row = start + (tile - tl.sum(tl.where(is_before, tiles, 0), 0)) * ROWS

    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(tl.cdiv(depth, DEPTH)):
        x = x_desc.load([at_row, step * DEPTH])
        w = w_desc.load([expert * columns + at_column, step * DEPTH])
        sums = tl.dot(x, w.T, sums)
    row, column = at_row + tl.arange(0, ROWS), at_column + tl.arange(0, COLUMNS)
    if SCALED:
        left = tl.load(x_scale_ptr + row, row < end, 0.0)
        right = tl.load(w_scale_ptr + expert * columns + column, column < columns, 0.0)
        sums *= left[:, None] * right[None, :]
    is_own = (row < end)[:, None] & (column < columns)[None, :]
    out = y_ptr + row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(out, sums.to(y_ptr.dtype.element_ty), is_own)


def config_for(rows: int) -> TileConfig:
    """Tiles for so many rows of an expert."""
    return SMALL if rows < 64 else MEDIUM if rows < 1024 else LARGE


def _launched(
    x: Tensor, weight: Tensor, sizes: Tensor, scales: tuple[Tensor, Tensor] | None,
    config: TileConfig | None, out: torch.dtype,
) -> Tensor:  # fmt: skip
    (rows, depth), (experts, columns, _) = x.shape, weight.shape
    # rows past the last expert's are of nobody
    y = torch.zeros((rows, columns), dtype=out, device=x.device)
    if not y.numel() or not depth:
        return y
    tile = config or config_for(rows // experts)
    step = tile.depth // x.element_size()
    operands = [
        TensorDescriptor.from_tensor(x, [tile.rows, step]),
        TensorDescriptor.from_tensor(weight.view(-1, depth), [tile.columns, step]),
    ]
    down = -(-rows // tile.rows) + experts
    launch: Any = grouped_kernel[(down * -(-columns // tile.columns),)]
    launch(
        *operands, y, sizes, *(scales or (y, y)), down, columns, depth, experts,
        tile.rows, tile.columns, step, tile.group, triton.next_power_of_2(experts),
        scales is not None, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


def grouped(x: Tensor, weight: Tensor, sizes: Tensor, config: TileConfig | None = None) -> Tensor:
    """`x [t, k]` and `weight [e, n, k]` of one 16-bit type, `sizes [e]` int32, dense."""
    return _launched(x, weight, sizes, None, config, x.dtype)


def grouped_fp8(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, sizes: Tensor,
    format: str = "e4m3", config: TileConfig | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`x [t, k]`, `weight [e, n, k]` codes of E4M3; `x_scale [t]`, `weight_scale [e, n]` in f32."""
    float8 = torch.float8_e4m3fn
    scales = x_scale, weight_scale
    return _launched(x.view(float8), weight.view(float8), sizes, scales, config, out)
