"""Running sums in one pass with decoupled look-back, in Triton.

Rows are cut into tiles, each of which is a program: it publishes its own sum, looks back at the
tiles before until it meets one that knows the sum of all before it, then publishes its own. A value
and its flag are one word, so that no fence is needed. Tiles are taken in the order of a counter:
all that a tile waits for have begun. What limits it is memory: one read, one write.
Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
COLUMNS = 4096  # elements of a tile
OWN, ALL = 1, 2  # what a tile has published: its own sum, or that of all up to it
WINDOW = 32  # tiles that are looked at together


@triton.jit
def _word(value, flag):
    bits = value.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (bits << 32) | flag


@triton.jit
def inclusive_kernel(
    x_ptr, y_ptr, word_ptr, next_ptr, size, tiles, COLUMNS: tl.constexpr, WINDOW: tl.constexpr
):
    """One tile of one row."""
    ticket = tl.atomic_add(next_ptr, 1)
    row, tile = (ticket // tiles).to(tl.int64), ticket % tiles
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * size + columns, columns < size, 0.0).to(tl.float32)
    own = tl.sum(x, 0)
    words = word_ptr + row * tiles
    before = tl.zeros([], tl.float32)
    if tile > 0:
        tl.atomic_xchg(words + tile, _word(own, 1), sem="relaxed")
        last = tile - 1
        back = tl.arange(0, WINDOW)
        while last >= 0:
            at = last - back
            seen = tl.load(words + at, at >= 0, 2, volatile=True)  # before the row: a sum of 0
            flag = (seen & 3).to(tl.int32)
            value = (seen >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
            nearest = tl.min(tl.where(flag == 2, back, WINDOW), 0)
            if tl.min(tl.where(back <= nearest, flag, 2), 0) > 0:
                before += tl.sum(tl.where(back <= nearest, value, 0.0), 0)
                last = tl.where(nearest < WINDOW, -1, last - WINDOW)
    tl.atomic_xchg(words + tile, _word(before + own, 2), sem="relaxed")
    tl.store(y_ptr + row * size + columns, tl.cumsum(x, 0) + before, columns < size)


def inclusive(x: Tensor, most: int = COLUMNS, warps: int = 8) -> Tensor:
    """`x [..., n]`, dense; tiles have `most` elements."""
    y, size = torch.empty_like(x), x.shape[-1]
    if y.numel():
        rows = x.numel() // size
        columns = min(max(1 << (size - 1).bit_length(), 16), most)
        tiles = -(-size // columns)
        words = torch.zeros(rows * tiles + 1, dtype=torch.int64, device=x.device)
        launch: Any = inclusive_kernel[(rows * tiles,)]
        launch(
            x, y, words[1:].view(torch.uint64), words[:1].view(torch.int32), size, tiles,
            columns, WINDOW, num_warps=max(1, min(warps, columns // 512)),
        )  # fmt: skip
    return y
