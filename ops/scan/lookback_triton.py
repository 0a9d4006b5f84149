"""Running sums in one pass with decoupled look-back, in Triton.

Rows are cut into tiles, each of which is a program: it publishes its own sum, looks back at the
tiles before until it meets one that knows the sum of all before it, then publishes its own. A value
and its flag are one word, so that no fence is needed. Tiles are taken in the order of a counter:
all that a tile waits for have begun. What limits it is memory, one read and one write, as long as
enough tiles wait in registers, and a window has those that begin while it is read.
Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
COLUMNS, HELD = 8192, 64  # elements of a tile, and of a thread
REGISTERS = 96  # of a thread: as few as let most tiles be under way
WINDOW = 128  # tiles that are looked at together: a word for each thread


@triton.jit
def word_of(value, flag):
    """An f32 with a flag below it: both are seen, or neither."""
    bits = value.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (bits << 32) | flag


@triton.jit
def value_of(word):
    """The f32 of a word."""
    return (word >> 32).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def nearest(flag, back, WINDOW: tl.constexpr):
    """Of tiles so far back the first that has not just its own, twice; odd if it has nothing."""
    return tl.min(tl.where(flag == 1, 2 * WINDOW, 2 * back + (flag == 0).to(tl.int32)), 0)


@triton.jit
def inclusive_kernel(
    x_ptr, y_ptr, word_ptr, next_ptr, size, tiles, COLUMNS: tl.constexpr, WINDOW: tl.constexpr
):
    """One tile of one row."""
    ticket = tl.atomic_add(next_ptr, 1, sem="relaxed")
    row, tile = (ticket // tiles).to(tl.int64), ticket % tiles
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * size + columns, columns < size, 0.0).to(tl.float32)
    own = tl.sum(x, 0)
    words = word_ptr + row * tiles
    before = tl.zeros([], tl.float32)
    if tile > 0:  # flags: 1 of its own sum, 2 of that of all up to it
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
    """`x [..., n]`, dense; tiles have `most` elements."""
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
