"""Matmuls of 4-bit weights in Triton: bytes are unpacked in registers, for tensor cores.

Weights are the left operand, y^T = weight x^T: tensor cores take that side from registers, at least
64 rows of it, with as few as 16 rows of x on the other side. Low and high halves of bytes are two
matmuls, each with neighbours of x, so that no code moves between threads. A step stays within one
group, whose scale multiplies the sums and not the weights: a 4-bit number is exact in 16 bits.

Up to about 64 rows of x the kernel is bound by reading weights, a quarter of the bytes of 16-bit
ones, if enough loads are in flight (`stages`). With more rows it is bound by unpacking, 1.5
instructions per weight and tile of x, which bf16 matmuls do not need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
MOST = 64  # largest number of bytes of a column per step

# Four bytes to four bf16 of low halves and four of high ones. A code in the last bits of 128 is
# 128 + code; 136 is subtracted.
_TO_BF16 = tl.constexpr("""{
.reg .b32 a, b, c, d, e;
mov.b32 e, 0x43084308;
prmt.b32 a, $4, 0, 0x4140;
prmt.b32 b, $4, 0, 0x4342;
shr.u32 c, a, 4;
shr.u32 d, b, 4;
lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
lop3.b32 b, b, 0x000f000f, 0x43004300, 0xea;
lop3.b32 c, c, 0x000f000f, 0x43004300, 0xea;
lop3.b32 d, d, 0x000f000f, 0x43004300, 0xea;
sub.rn.bf16x2 $0, a, e;
sub.rn.bf16x2 $1, b, e;
sub.rn.bf16x2 $2, c, e;
sub.rn.bf16x2 $3, d, e;
}""")


@dataclass(frozen=True)
class Config:
    """Tile sizes: `rows` of x by `columns` rows of weights; `parts` programs share a tile's sum."""

    rows: int
    columns: int
    warps: int
    stages: int
    parts: int = 1


@triton.jit
def _unpacked(codes, dtype: tl.constexpr, PTX: tl.constexpr):
    """Converts bytes with two 4-bit codes each to two tensors of numbers, code minus 8: those of
    the low halves, and those of the high halves."""
    if PTX:
        low, high = tl.inline_asm_elementwise(
            _TO_BF16,  # pyright: ignore
            "=r,=r,=r,=r,r",
            [codes],
            (tl.bfloat16, tl.bfloat16),
            True,
            4,
        )
    else:
        low = ((codes & 15).to(tl.float32) - 8).to(dtype)
        high = ((codes >> 4).to(tl.float32) - 8).to(dtype)
    return low, high


@triton.jit
def w4a16_kernel(
    x_ptr, packed_ptr, scales_ptr, y_ptr, parts_ptr, arrived_ptr, rows, columns, half,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr, SIZE: tl.constexpr,
    PARTS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Computes one part of a tile of results; `half` bytes per column, `SIZE` per group."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row, is_column = row < rows, column < columns
    inside = tl.arange(0, HALF)
    packed_at = packed_ptr + column[:, None].to(tl.int64) * half + inside[None, :]
    x_at = x_ptr + row[:, None].to(tl.int64) * (2 * half) + inside[None, :]
    scales_at = scales_ptr + column.to(tl.int64) * (half // SIZE)
    sums = tl.zeros([COLUMNS, ROWS], tl.float32)
    steps = tl.cdiv(half // HALF, PARTS)
    first = tl.program_id(2) * steps
    for start in range(first * HALF, tl.minimum((first + steps) * HALF, half), HALF):
        codes = tl.load(packed_at + start, is_column[:, None], 0)
        group = start // SIZE
        place = x_at + start + group * SIZE
        scale = tl.load(scales_at + group, is_column, 0.0).to(tl.float32)
        low, high = _unpacked(codes, x_ptr.dtype.element_ty, PTX)
        part = tl.dot(low, tl.trans(tl.load(place, is_row[:, None], 0.0)))
        part = tl.dot(high, tl.trans(tl.load(place + SIZE, is_row[:, None], 0.0)), part)
        sums += part * scale[:, None]
    if PARTS > 1:
        # the program that finishes last adds the parts of the others
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        own = tl.arange(0, COLUMNS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        parts_at = parts_ptr + tile.to(tl.int64) * (PARTS * ROWS * COLUMNS) + own
        tl.store(parts_at + tl.program_id(2) * (ROWS * COLUMNS), sums, is_row[None, :])
        tl.debug_barrier()
        if tl.atomic_add(arrived_ptr + tile, 1) != PARTS - 1:
            return
        tl.store(arrived_ptr + tile, 0)
        sums = tl.zeros([COLUMNS, ROWS], tl.float32)
        for i in tl.static_range(PARTS):
            left = tl.load(
                parts_at + i * (ROWS * COLUMNS), is_row[None, :], 0.0, cache_modifier=".cg"
            )
            sums += left
    out = y_ptr + row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(out, tl.trans(sums).to(y_ptr.dtype.element_ty), is_row[:, None] & is_column[None, :])


def step(size: int) -> int:
    """Returns the bytes per step along k: the largest power of two that divides a group.

    `size`: bytes of a group. The result is at most MOST; 0 if it is too short for a matmul.
    """
    found = min(size & -size, MOST)
    return found if found >= 16 else 0


def config_for(rows: int, columns: int, processors: int) -> Config:
    """Picks tiles with few rows for few rows of x, and enough parts to fill all multiprocessors."""
    if rows <= 16:
        tile, each = Config(16, 64, 4, 3), 4
    else:
        tile, each = Config(32 if rows <= 32 else 64 if rows <= 64 else 128, 128, 8, 3), 2
    programs = -(-columns // tile.columns) * -(-rows // tile.rows)
    return replace(tile, parts=min(max(each * processors // programs, 1), 8))


def w4a16(x: Tensor, packed: Tensor, scales: Tensor, config: Config | None = None) -> Tensor:
    """Multiplies `x [..., k]` with `packed [n, k / 2]` and `scales [n, groups]`, all dense.

    Groups have at least 32 weights.
    """
    (columns, groups), depth = scales.shape, x.shape[-1]
    y = x.new_empty((*x.shape[:-1], columns))
    rows, half = x.numel() // depth, depth // 2
    if not y.numel():
        return y
    tile = config or config_for(rows, columns, _processors(x.device))
    grid = -(-columns // tile.columns), -(-rows // tile.rows), tile.parts
    parts, arrived = y, y
    if tile.parts > 1:
        count = grid[0] * grid[1]
        parts = y.new_empty((count, tile.parts, tile.rows * tile.columns), dtype=torch.float32)
        arrived = torch.zeros(count, dtype=torch.int32, device=y.device)
    launch: Any = w4a16_kernel[grid]
    launch(
        x, packed, scales, y, parts, arrived, rows, columns, half,
        tile.rows, tile.columns, step(half // groups), half // groups, tile.parts,
        x.is_cuda and x.dtype is torch.bfloat16, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return torch.cuda.get_device_properties(device).multi_processor_count
