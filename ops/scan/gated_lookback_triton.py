"""Gated scans in one pass with decoupled look-back, in Triton: where sequences are few.

As `lookback_triton`, on tiles of steps and channels: what is published is a map h -> gate h + value
of each channel, two words of a value and a flag; one that is known from the start on has gate 0, so
that maps compose whatever is met.
Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from stack.ops.scan.carried_triton import after, joined, runs_of, steps_of
from stack.ops.scan.lookback_triton import value_of, word_of

Tensor = torch.Tensor
RUNS, STEPS, CHANNELS = 16, 4, 64
WINDOW = 32  # tiles that are looked at together


@triton.jit
def _before(gate1, x1, gate2, x2):
    return after(gate2, x2, gate1, x1)


@triton.jit
def _row_of(tile, row, ROWS: tl.constexpr):
    """One of the first axis."""
    return tl.sum(tl.where(tl.arange(0, ROWS)[:, None] == row, tile, 0.0), 0)


@triton.jit
def gated_kernel(
    g_ptr, x_ptr, first_ptr, y_ptr, gate_word_ptr, word_ptr, next_ptr, steps, channels, blocks,
    tiles, RUNS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """One tile of some channels of a sequence."""
    ticket = tl.atomic_add(next_ptr, 1, sem="relaxed")
    tile, block = ticket // blocks, ticket % blocks
    across = tl.cdiv(channels, CHANNELS)
    row = (block // across).to(tl.int64)
    lane = tl.arange(0, CHANNELS)
    channel = block % across * CHANNELS + lane
    inside = channel < channels
    step = steps_of(RUNS, STEPS)
    start = tile * RUNS * STEPS
    at = (row * steps + start) * channels + step * channels + channel
    seen = (start + step < steps) & inside
    gate, x = tl.load(g_ptr + at, seen, 0.0), tl.load(x_ptr + at, seen, 0.0)
    gates, values, gate_end, end = runs_of(gate, x, STEPS)
    upto_gate, upto = tl.associative_scan((gate_end, end), 0, after)
    own_gate, own = _row_of(upto_gate, RUNS - 1, RUNS), _row_of(upto, RUNS - 1, RUNS)

    words = block.to(tl.int64) * tiles * CHANNELS + lane
    state = tl.load(first_ptr + row * channels + channel, inside, 0.0).to(tl.float32)
    if tile > 0:
        tl.atomic_xchg(gate_word_ptr + words + tile * CHANNELS, word_of(own_gate, 1), sem="relaxed")
        tl.atomic_xchg(word_ptr + words + tile * CHANNELS, word_of(own, 1), sem="relaxed")
        state = tl.zeros([CHANNELS], tl.float32)
        since = state + 1.0  # the gate of all tiles from where it was looked
        last = tile - 1
        back = tl.arange(0, WINDOW)
        while last >= 0:
            near = (last - back)[:, None]
            place = words[None, :] + near * CHANNELS
            gate_word = tl.load(gate_word_ptr + place, near >= 0, 0, volatile=True)
            word = tl.load(word_ptr + place, near >= 0, 0, volatile=True)
            flags = (word & 3).to(tl.int32)
            known = tl.where(flags == 2, 2, tl.minimum(flags, (gate_word & 3).to(tl.int32)))
            flag = tl.min(known, 1)
            stop = tl.min(tl.where(flag == 1, 2 * WINDOW, 2 * back + (flag == 0).to(tl.int32)), 0)
            taken = ((2 * back <= stop) & (flag > 0))[:, None]
            maps = tl.where(taken, tl.where(flags == 2, 0.0, value_of(gate_word)), 1.0)
            ends = tl.where(taken, value_of(word), 0.0)
            maps, ends = tl.associative_scan((maps, ends), 0, _before)
            state += since * _row_of(ends, WINDOW - 1, WINDOW)
            since *= _row_of(maps, WINDOW - 1, WINDOW)
            is_met = (stop % 2 == 0) & (stop < 2 * WINDOW)
            last = tl.where(is_met, -1, last - stop // 2)
    tl.atomic_xchg(
        word_ptr + words + tile * CHANNELS, word_of(own_gate * state + own, 2), sem="relaxed"
    )
    y, _ = joined(
        gates, values, gate_end, end, tl.broadcast_to(state[None, :], [RUNS, CHANNELS]), RUNS
    )
    tl.store(y_ptr + at, y, seen)


def gated(
    gate: Tensor,
    x: Tensor,
    first: Tensor,
    runs: int = RUNS,
    steps: int = STEPS,
    channels: int = CHANNELS,
    window: int = WINDOW,
    warps: int = 4,
) -> Tensor:
    """`gate [..., n, d]`, `x [..., n, d]`, `first [..., d]`, dense."""
    y, (length, width) = torch.empty_like(x), x.shape[-2:]
    if y.numel():
        channels = min(channels, triton.next_power_of_2(width))
        blocks = first.numel() // width * -(-width // channels)
        tiles = -(-length // (runs * steps))
        count = blocks * tiles * channels
        words = torch.zeros(2 * count + 1, dtype=torch.int64, device=x.device)
        held = words[1:].view(torch.uint64)
        launch: Any = gated_kernel[(blocks * tiles,)]
        launch(
            gate, x, first, y, held[:count], held[count:], words[:1].view(torch.int32), length, width,
            blocks, tiles, runs, steps, channels, min(window, triton.next_power_of_2(tiles)), num_warps=warps,
        )  # fmt: skip
    return y
