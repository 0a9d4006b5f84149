"""Mamba's selective scan in Triton: states stay in registers, not in memory.

A program carries the states of some channels along the steps. It is bound by the exponentials, one
per step, channel and state; memory is read once. Source: Gu and Dao, 2023.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor


@triton.jit
def selective_kernel(
    x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, skip_ptr, first_ptr, y_ptr, last_ptr, steps, channels,
    CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Scans some channels of one sequence."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    state = tl.arange(0, STATES)
    inside = channel < channels
    at = channel[:, None] * STATES + state[None, :]
    a = tl.load(a_ptr + at, inside[:, None], 0.0).to(tl.float32) * 1.4426950408889634
    skip = tl.load(skip_ptr + channel, inside, 0.0).to(tl.float32)
    h = tl.load(first_ptr + row * channels * STATES + at, inside[:, None], 0.0).to(tl.float32)
    place = row * steps * channels + channel
    shared = row * steps * STATES + state
    for _ in tl.range(0, steps, num_stages=4):  # pyright: ignore
        x = tl.load(x_ptr + place, inside, 0.0).to(tl.float32)
        dt = tl.load(dt_ptr + place, inside, 0.0).to(tl.float32)
        b = tl.load(b_ptr + shared).to(tl.float32)
        c = tl.load(c_ptr + shared).to(tl.float32)
        h = tl.math.exp2(dt[:, None] * a) * h + (dt * x)[:, None] * b[None, :]
        y = tl.sum(h * c[None, :], 1) + skip * x
        tl.store(y_ptr + place, y, inside)
        place += channels
        shared += STATES
    tl.store(last_ptr + row * channels * STATES + at, h, inside[:, None])


def selective(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Takes dense operands, those of operator `scan.selective`."""
    y, last = torch.empty_like(x), torch.empty_like(first)
    steps, channels = x.shape[-2:]
    states = a.shape[-1]
    if first.numel():
        held = max(1, 256 // states)  # channels per program: 8 states for each of 32 lanes
        rows = first.numel() // (channels * states)
        launch: Any = selective_kernel[(rows, -(-channels // held))]
        launch(x, dt, a, b, c, skip, first, y, last, steps, channels, held, states, num_warps=1)
    return y, last
