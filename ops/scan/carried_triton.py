"""Scans in Triton that carry a state from tile to tile: one pass over memory, which is the limit.

A program has some channels of one sequence, and scans tiles of steps by an associative function;
the next tile is under way meanwhile.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
STEPS = 64  # that a program of a gated scan holds at once
CHANNELS = 16  # that it carries: few, so that there are many programs


@triton.jit
def _after(gate1, x1, gate2, x2):
    """h -> gate h + x, one after the other."""
    return gate1 * gate2, gate2 * x1 + x2


@triton.jit
def _tile(g_ptr, x_ptr, row, start, channel, steps, channels, STEPS: tl.constexpr):
    """Gates and values of some steps; past the end gates are 1 and values 0."""
    at = start + tl.arange(0, STEPS)
    seen = (at < steps)[:, None] & (channel < channels)[None, :]
    place = (row * steps + at)[:, None] * channels + channel[None, :]
    return tl.load(g_ptr + place, seen, 1.0), tl.load(x_ptr + place, seen, 0.0)


@triton.jit
def gated_kernel(
    g_ptr, x_ptr, first_ptr, y_ptr, steps, channels, STEPS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Some channels of one sequence, from the first step to the last."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    step = tl.arange(0, STEPS)
    state = tl.load(first_ptr + row * channels + channel, inside, 0.0).to(tl.float32)
    gate, x = _tile(g_ptr, x_ptr, row, 0, channel, steps, channels, STEPS)  # pyright: ignore
    for start in range(0, steps, STEPS):
        ahead = _tile(g_ptr, x_ptr, row, start + STEPS, channel, steps, channels, STEPS)
        pair = gate.to(tl.float32), x.to(tl.float32)
        gates, values = tl.associative_scan(pair, 0, _after)
        y = gates * state[None, :] + values
        at = start + step
        place = (row * steps + at)[:, None] * channels + channel[None, :]
        tl.store(y_ptr + place, y, (at < steps)[:, None] & inside[None, :])
        state = tl.sum(tl.where(step[:, None] == STEPS - 1, y, 0.0), 0)
        gate, x = ahead


@triton.jit
def _tile_back(g_ptr, h_ptr, told_ptr, row, start, channel, steps, channels, STEPS: tl.constexpr):
    """The gates of the next steps, the states before, and what is told, of some steps."""
    at = start + tl.arange(0, STEPS)
    seen = ((at >= 0) & (at < steps))[:, None] & (channel < channels)[None, :]
    place = (row * steps + at)[:, None] * channels + channel[None, :]
    following = tl.load(g_ptr + place + channels, seen & (at + 1 < steps)[:, None], 0.0)
    before = tl.load(h_ptr + place - channels, seen & (at > 0)[:, None], 0.0)
    return following, before, tl.load(told_ptr + place, seen, 0.0)


@triton.jit
def gated_gradient_kernel(
    g_ptr, first_ptr, h_ptr, told_ptr, dg_ptr, dx_ptr, dfirst_ptr, steps, channels,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The same from the last step to the first: dx[t] = told[t] + gate[t+1] dx[t+1]."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    step = tl.arange(0, STEPS)
    first = tl.load(first_ptr + row * channels + channel, inside, 0.0).to(tl.float32)
    worth = tl.zeros([CHANNELS], tl.float32)
    last = (steps - 1) // STEPS * STEPS
    following, before, told = _tile_back(
        g_ptr, h_ptr, told_ptr, row, last, channel, steps, channels, STEPS
    )
    for back in range(0, steps, STEPS):
        start = last - back
        ahead = _tile_back(
            g_ptr, h_ptr, told_ptr, row, start - STEPS, channel, steps, channels, STEPS
        )
        pair = following.to(tl.float32), told.to(tl.float32)
        gates, values = tl.associative_scan(pair, 0, _after, reverse=True)
        dx = gates * worth[None, :] + values
        at = start + step
        seen = (at < steps)[:, None] & inside[None, :]
        place = (row * steps + at)[:, None] * channels + channel[None, :]
        before = tl.where((at == 0)[:, None], first[None, :], before.to(tl.float32))
        tl.store(dx_ptr + place, dx, seen)
        tl.store(dg_ptr + place, dx * before, seen)
        worth = tl.sum(tl.where(step[:, None] == 0, dx, 0.0), 0)
        following, before, told = ahead
    gate = tl.load(g_ptr + row * steps * channels + channel, inside, 0.0).to(tl.float32)
    tl.store(dfirst_ptr + row * channels + channel, gate * worth, inside)


def _grid(first: Tensor) -> tuple[int, int]:
    channels = first.shape[-1]
    return first.numel() // channels, -(-channels // CHANNELS)


def gated(gate: Tensor, x: Tensor, first: Tensor) -> Tensor:
    """`gate [..., n, d]`, `x [..., n, d]`, `first [..., d]`, dense."""
    y, (steps, channels) = torch.empty_like(x), x.shape[-2:]
    if y.numel():
        launch: Any = gated_kernel[_grid(first)]
        launch(gate, x, first, y, steps, channels, STEPS, CHANNELS, num_warps=4)
    return y


def gated_gradient(
    gate: Tensor, x: Tensor, first: Tensor, out: Tensor, told: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `gate`, `x` and `first`; all dense."""
    made = torch.empty_like(gate), torch.empty_like(x), torch.zeros_like(first)
    steps, channels = x.shape[-2:]
    if x.numel():
        launch: Any = gated_gradient_kernel[_grid(first)]
        launch(
            gate, first, out, told, *made, steps, channels, STEPS, CHANNELS, num_warps=4
        )  # fmt: skip
    return made
