"""Scans in Triton that carry a state from tile to tile: one pass over memory, which is the limit.

Programs share no rows, so few long rows leave processors idle; a decoupled look-back would not.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
COLUMNS = 2048  # elements of a row that a program scans at once
CHANNELS = 128  # that a program of a gated scan carries


@triton.jit
def inclusive_kernel(x_ptr, y_ptr, size, COLUMNS: tl.constexpr):
    """One row."""
    start = tl.program_id(0).to(tl.int64) * size
    carried = tl.zeros([], tl.float32)
    for first in range(0, size, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        x = tl.load(x_ptr + start + columns, columns < size, 0.0).to(tl.float32)
        tl.store(y_ptr + start + columns, tl.cumsum(x, 0) + carried, columns < size)
        carried += tl.sum(x, 0)


@triton.jit
def gated_kernel(g_ptr, x_ptr, first_ptr, y_ptr, steps, channels, CHANNELS: tl.constexpr):
    """Some channels of one sequence: their states stay in registers."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    state = tl.load(first_ptr + row * channels + channel, inside, 0.0).to(tl.float32)
    place = row * steps * channels + channel
    for _ in range(steps):
        gate = tl.load(g_ptr + place, inside, 0.0).to(tl.float32)
        state = gate * state + tl.load(x_ptr + place, inside, 0.0).to(tl.float32)
        tl.store(y_ptr + place, state, inside)
        place += channels


def inclusive(x: Tensor) -> Tensor:
    """`x [..., n]`, dense."""
    y, size = torch.empty_like(x), x.shape[-1]
    if y.numel():
        launch: Any = inclusive_kernel[(x.numel() // size,)]
        launch(x, y, size, min(1 << (size - 1).bit_length(), COLUMNS), num_warps=4)
    return y


def gated(gate: Tensor, x: Tensor, first: Tensor) -> Tensor:
    """`gate [..., n, d]`, `x [..., n, d]`, `first [..., d]`, dense."""
    y, (steps, channels) = torch.empty_like(x), x.shape[-2:]
    if y.numel():
        launch: Any = gated_kernel[(first.numel() // channels, -(-channels // CHANNELS))]
        launch(gate, x, first, y, steps, channels, CHANNELS, num_warps=CHANNELS // 32)
    return y
