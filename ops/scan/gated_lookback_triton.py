"""Gated scans in one pass with decoupled look-back, in Triton, for a few long sequences.

Works as `lookback_triton`, on tiles of some channels. A tile publishes the map h -> gate h + value
of each channel, in two words with flags. A state that includes everything before it has gate 0, so
maps compose in either case. The gradient is the same scan from the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from stack.ops.scan.lookback_triton import nearest, value_of, word_of
from stack.ops.scan.runs_triton import after, joined, runs_of, steps_of

Tensor = torch.Tensor
STEPS, WARPS, STAGES = 8, 4, 3  # steps per run; warps per program; prefetched tiles
LINE, ACCESS = 128, 16  # bytes of a row in a tile; bytes that a thread moves at once


@dataclass(frozen=True)
class Config:
    """Tiles per part, and the number of parts that a look-back reads at once."""

    tiles: int
    window: int


FORWARD = Config(4, 8)
BACKWARD = Config(2, 32)


@triton.jit
def _before(gate1, x1, gate2, x2):
    return after(gate2, x2, gate1, x1)


@triton.jit
def _last(tile, ROWS: tl.constexpr):
    """Returns the last of the `ROWS` rows of a tile."""
    return tl.sum(tl.where(tl.arange(0, ROWS)[:, None] == ROWS - 1, tile, 0.0), 0)


@triton.jit
def _whole(gate, end, RUNS: tl.constexpr):
    """Composes the affine maps of a tile's runs of steps, h -> gate h + end, to one map for the
    whole tile."""
    maps, ends = tl.associative_scan((gate, end), 0, after)
    return _last(maps, RUNS), _last(ends, RUNS)


@triton.jit
def _looked_back(
    own_gate, own, state, gate_words, words, tile,
    RUNS: tl.constexpr, CHANNELS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Returns the state before part `tile`, from the maps that earlier parts have published.

    Publishes the part's own map (`own_gate`, `own`) first, and its end state afterwards. `state`:
    the state before the first part.
    """
    mine = tile * CHANNELS
    if tile > 0:
        tl.atomic_xchg(gate_words + mine, word_of(own_gate, 1), sem="relaxed")
        tl.atomic_xchg(words + mine, word_of(own, 1), sem="relaxed")
        state = tl.zeros_like(own)
        since = state + 1.0  # the product of the gates of all tiles seen so far
        last = tile - 1
        back = tl.arange(0, WINDOW)
        while last >= 0:
            place = (last - back)[:, None]
            gate_word = tl.load(gate_words + place * CHANNELS, place >= 0, 0, volatile=True)
            word = tl.load(words + place * CHANNELS, place >= 0, 0, volatile=True)
            flag = word.to(tl.int32)
            is_all = flag == 2
            flag = tl.min(tl.where(is_all, 2, flag & gate_word.to(tl.int32)), 1)
            stop = nearest(flag, back, WINDOW)
            taken = ((2 * back <= stop) & (flag > 0))[:, None]
            maps = tl.where(taken, tl.where(is_all, 0.0, value_of(gate_word)), 1.0)
            ends = tl.where(taken, value_of(word), 0.0)
            maps, ends = tl.associative_scan((maps, ends), 0, _before)
            state += since * _last(ends, WINDOW)
            since *= _last(maps, WINDOW)
            is_met = (stop % 2 == 0) & (stop < 2 * WINDOW)
            last = tl.where(is_met, -1, last - stop // 2)
    tl.atomic_xchg(words + mine, word_of(own_gate * state + own, 2), sem="relaxed")
    return tl.broadcast_to(state[None, :], [RUNS, CHANNELS])


@triton.jit
def _taken(next_ptr, blocks, channels, CHANNELS: tl.constexpr):
    """Takes the next work item from a counter: its tile number, block, sequence and channels.

    A block is some channels of one sequence.
    """
    ticket = tl.atomic_add(next_ptr, 1, sem="relaxed")
    tile, block = ticket // blocks, (ticket % blocks).to(tl.int64)
    across = tl.cdiv(channels, CHANNELS)
    return tile, block, block // across, block % across * CHANNELS + tl.arange(0, CHANNELS)


@triton.jit
def gated_kernel(
    g_ptr, x_ptr, first_ptr, y_ptr, gate_word_ptr, word_ptr, next_ptr,
    steps, channels, blocks, parts,
    TILES: tl.constexpr, RUNS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr,
    WINDOW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Scans one part of the steps, for some channels of a sequence."""
    part, block, row, channel = _taken(next_ptr, blocks, channels, CHANNELS)  # pyright: ignore
    inside = channel < channels
    first = tl.load(first_ptr + row * channels + channel, inside, 0.0).to(tl.float32)
    start = part * TILES * RUNS * STEPS + steps_of(RUNS, STEPS)
    whole_gate, whole = tl.zeros_like(first) + 1.0, tl.zeros_like(first)
    for tile in tl.range(0, TILES, num_stages=STAGES):  # pyright: ignore
        step = start + tile * RUNS * STEPS
        at, seen = (row * steps + step) * channels + channel, (step < steps) & inside
        gate, x = tl.load(g_ptr + at, seen, 0.0), tl.load(x_ptr + at, seen, 0.0)
        _, _, gate, end = runs_of(gate, x, STEPS)
        gate, end = _whole(gate, end, RUNS)
        whole_gate, whole = after(whole_gate, whole, gate, end)
    words = block * parts * CHANNELS + tl.arange(0, CHANNELS)
    state = _looked_back(
        whole_gate, whole, first, gate_word_ptr + words, word_ptr + words, part,
        RUNS, CHANNELS, WINDOW,
    )  # fmt: skip
    for tile in tl.range(0, TILES, num_stages=STAGES):  # pyright: ignore
        step = start + tile * RUNS * STEPS
        at, seen = (row * steps + step) * channels + channel, (step < steps) & inside
        gate, x = tl.load(g_ptr + at, seen, 0.0), tl.load(x_ptr + at, seen, 0.0)
        gates, values, gate, end = runs_of(gate, x, STEPS)
        y, state = joined(gates, values, gate, end, state, RUNS)
        tl.store(y_ptr + at, y, seen)


@triton.jit
def gated_gradient_kernel(
    g_ptr, first_ptr, h_ptr, told_ptr, dg_ptr, dx_ptr, dfirst_ptr,
    gate_word_ptr, word_ptr, next_ptr, steps, channels, blocks, parts,
    TILES: tl.constexpr, RUNS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr,
    WINDOW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Scans backwards for the gradients; parts are counted from the end."""
    part, block, row, channel = _taken(next_ptr, blocks, channels, CHANNELS)  # pyright: ignore
    inside = channel < channels
    first = tl.load(first_ptr + row * channels + channel, inside, 0.0).to(tl.float32)
    start = steps - 1 - part * TILES * RUNS * STEPS - steps_of(RUNS, STEPS)  # steps before each
    whole_gate, whole = tl.zeros_like(first) + 1.0, tl.zeros_like(first)
    for tile in tl.range(0, TILES, num_stages=STAGES):  # pyright: ignore
        left = start - tile * RUNS * STEPS
        at, seen = (row * steps + left) * channels + channel, (left >= 0) & inside
        following = tl.load(g_ptr + at + channels, seen & (left < steps - 1), 1.0)
        told = tl.load(told_ptr + at, seen, 0.0)
        _, _, gate, end = runs_of(following, told, STEPS)
        gate, end = _whole(gate, end, RUNS)
        whole_gate, whole = after(whole_gate, whole, gate, end)
    words = block * parts * CHANNELS + tl.arange(0, CHANNELS)
    worth = _looked_back(
        whole_gate, whole, tl.zeros_like(first), gate_word_ptr + words, word_ptr + words, part,
        RUNS, CHANNELS, WINDOW,
    )  # fmt: skip
    for tile in tl.range(0, TILES, num_stages=STAGES):  # pyright: ignore
        left = start - tile * RUNS * STEPS
        at, seen = (row * steps + left) * channels + channel, (left >= 0) & inside
        following = tl.load(g_ptr + at + channels, seen & (left < steps - 1), 1.0)
        before = tl.load(h_ptr + at - channels, (left > 0) & inside, 0.0).to(tl.float32)
        told = tl.load(told_ptr + at, seen, 0.0)
        gates, values, gate, end = runs_of(following, told, STEPS)
        dx, worth = joined(gates, values, gate, end, worth, RUNS)
        tl.store(dx_ptr + at, dx, seen)
        tl.store(dg_ptr + at, dx * tl.where(left > 0, before, first), seen)
    if part == parts - 1:
        opening = tl.load(g_ptr + row * steps * channels + channel, inside, 0.0).to(tl.float32)
        to = dfirst_ptr + row * channels + tl.broadcast_to(channel[None, :], [RUNS, CHANNELS])
        is_first = tl.arange(0, RUNS)[:, None] == 0
        tl.store(to, opening * worth, is_first & inside)


def launch(kernel: Any, arrays: tuple[Tensor, ...], x: Tensor) -> None:
    """Launches one program per part of the steps and block of channels of `x [..., n, d]`."""
    c = FORWARD if kernel is gated_kernel else BACKWARD
    steps, width = x.shape[-2:]
    channels = min(LINE // x.element_size(), 1 << (width - 1).bit_length())
    blocks = x.numel() // (steps * width) * -(-width // channels)
    runs = max(1, 32 * WARPS * ACCESS // x.element_size() // channels)
    parts = -(-steps // (c.tiles * runs * STEPS))
    count = blocks * parts * channels
    words = torch.zeros(2 * count + 1, dtype=torch.int64, device=x.device)
    held = words[1:].view(torch.uint64)
    kernel[(blocks * parts,)](
        *arrays, held[:count], held[count:], words[:1].view(torch.int32),
        steps, width, blocks, parts, c.tiles, runs, STEPS, channels, c.window, STAGES,
        num_warps=WARPS,
    )  # fmt: skip
