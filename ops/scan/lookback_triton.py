"""Running sums in one pass with decoupled look-back, in Triton.

Rows are cut into tiles, one per program. A program publishes the sum of its tile, and looks back at
earlier tiles until it finds one that knows the sum of everything before it. Then it publishes its
own running sum. A value and its flag share one word, so no fence is needed. Tiles are assigned by a
counter, so all tiles that a program waits for have started. The kernel is bound by memory, one read
and one write, as long as enough tiles wait in registers and a window covers the tiles that start
while it is read.
Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
COLUMNS, HELD = 8192, 64  # elements per tile, and per thread
REGISTERS = 96  # per thread: few enough for most tiles to run concurrently
WINDOW = 128  # tiles that a look-back reads at once: one word per thread


@triton.jit
def word_of(value, flag):
    """Packs an f32 and a flag into one word, so that both become visible together."""
    bits = value.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (bits << 32) | flag


@triton.jit
def value_of(word):
    """Returns the f32 number in the high half of a 64-bit word, whose low half is a flag."""
    return (word >> 32).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def nearest(flag, back, WINDOW: tl.constexpr):
    """Returns twice the distance of the nearest tile whose flag is not 1, plus 1 if it is 0.

    Flag 0: nothing is published; 1: the tile's own sum; else the sum of everything up to it.
    Returns 2 * WINDOW if all flags are 1.
    """
    return tl.min(tl.where(flag == 1, 2 * WINDOW, 2 * back + (flag == 0).to(tl.int32)), 0)


@triton.jit
def inclusive_kernel(
    x_ptr, y_ptr, word_ptr, next_ptr, size, tiles, COLUMNS: tl.constexpr, WINDOW: tl.constexpr
):
    """Scans one tile of one row."""
    ticket = tl.atomic_add(next_ptr, 1, sem="relaxed")
    row, tile = (ticket // tiles).to(tl.int64), ticket % tiles
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * size + columns, columns < size, 0.0).to(tl.float32)
    own = tl.sum(x, 0)
    words = word_ptr + row * tiles
    before = tl.zeros([], tl.float32)
    if tile > 0:  # flag 1: the tile's own sum; 2: the sum of all tiles up to it
        tl.atomic_xchg(words + tile, word_of(own, 1), sem="relaxed")
        last = tile - 1
        back = tl.arange(0, WINDOW)
        while last >= 0:
            at = last - back
            seen = tl.load(words + at, at >= 0, 0, volatile=True)
            flag = seen.to(tl.int32)
            stop = nearest(flag, back, WINDOW)
            before += tl.sum(tl.where((2 * back <= stop) & (flag > 0), value_of(seen), 0.0), 0)
            is_met = (stop % 2 == 0) & (stop < 2 * WINDOW)
            last = tl.where(is_met, -1, last - stop // 2)
    tl.atomic_xchg(words + tile, word_of(before + own, 2), sem="relaxed")
    tl.store(y_ptr + row * size + columns, tl.cumsum(x, 0) + before, columns < size)


def inclusive(x: Tensor, most: int = COLUMNS) -> Tensor:
    """Running sums of dense `x [..., n]`, in tiles of at most `most` elements."""
    y, size = torch.empty_like(x), x.shape[-1]
    if y.numel():
        rows = x.numel() // size
        columns = min(max(1 << (size - 1).bit_length(), 16), most)
        tiles = -(-size // columns)
        words = torch.zeros(rows * tiles + 1, dtype=torch.int64, device=x.device)
        launch: Any = inclusive_kernel[(rows * tiles,)]
        launch(
            x, y, words[1:].view(torch.uint64), words[:1].view(torch.int32), size, tiles, columns,
            WINDOW, num_warps=max(1, columns // (32 * HELD)), maxnreg=REGISTERS,
        )  # fmt: skip
    return y
