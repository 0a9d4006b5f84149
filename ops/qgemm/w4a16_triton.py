"""Weights of 4 bits in Triton: bytes are taken apart in registers and meet x on tensor cores.

Even and odd places of k are two products, so that no byte is shuffled. With few rows, bytes of
weights are the limit: a quarter of what 16 bits would take.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
COLUMNS, HALF = 64, 64  # results of a program, and bytes that it walks over at once


@triton.jit
def w4a16_kernel(
    x_ptr, packed_ptr, scales_ptr, y_ptr, rows, columns, depth, groups,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """One tile of results."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < rows, column < columns
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth // 2, HALF):
        byte = start + tl.arange(0, HALF)
        inside = byte < depth // 2
        known = inside[:, None] & is_column[None, :]
        at = column[None, :].to(tl.int64) * (depth // 2) + byte[:, None]
        codes = tl.load(packed_ptr + at, known, 0).to(tl.int32)
        group = 2 * byte // (depth // groups)
        scale = tl.load(scales_ptr + column[None, :] * groups + group[:, None], known, 0.0)
        low = ((codes & 15) - 8).to(scale.dtype) * scale
        high = ((codes >> 4) - 8).to(scale.dtype) * scale
        place = x_ptr + row[:, None].to(tl.int64) * depth + 2 * byte[None, :]
        read = is_row[:, None] & inside[None, :]
        sums = tl.dot(tl.load(place, read, 0.0), low, sums)
        sums = tl.dot(tl.load(place + 1, read, 0.0), high, sums)
    out = y_ptr + row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(out, sums, is_row[:, None] & is_column[None, :])


def w4a16(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    """`x [..., k]`, `packed [n, k / 2]`, `scales [n, groups]`, dense."""
    (columns, groups), depth = scales.shape, x.shape[-1]
    y = x.new_empty((*x.shape[:-1], columns))
    rows = x.numel() // depth
    if y.numel():
        tile = 16 if rows <= 16 else 64
        launch: Any = w4a16_kernel[(-(-rows // tile), -(-columns // COLUMNS))]
        launch(
            x, packed, scales, y, rows, columns, depth, groups, tile, COLUMNS, HALF,
            num_warps=4, num_stages=4,
        )  # fmt: skip
    return y
