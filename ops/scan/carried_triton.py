"""Gated scans in Triton that carry a state from tile to tile, in one pass over memory.

A program processes some channels of one sequence, as many as a cache line holds, and prefetches the
next tiles. The kernel is bound by memory as long as programs fill the GPU; if they do not, see
`gated_lookback_triton`.
Source: Martin and Cundy, "Parallelizing linear recurrent neural nets", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from stack.ops.scan import gated_lookback_triton
from stack.ops.scan.runs_triton import joined, runs_of, steps_of

Tensor = torch.Tensor
ACCESS, SECTOR = 16, 32  # bytes that a thread moves at once, and of the smallest memory access


@dataclass(frozen=True)
class Config:
    """Launch parameters: steps per run, warps, prefetched tiles, and bytes of a row in a tile."""

    steps: int
    warps: int
    stages: int
    line: int


FORWARD = Config(8, 2, 3, 128)
BACKWARD = Config(4, 4, 3, 128)


@triton.jit
def gated_kernel(
    g_ptr, x_ptr, first_ptr, y_ptr, steps, channels,
    RUNS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Scans some channels of one sequence, from the first step to the last."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    step = steps_of(RUNS, STEPS)
    at = step * channels + channel
    state = tl.load(first_ptr + row * channels + channel, inside, 0.0).to(tl.float32)
    state = tl.broadcast_to(state[None, :], [RUNS, CHANNELS])
    for start in tl.range(0, steps, RUNS * STEPS, num_stages=STAGES):  # pyright: ignore
        seen = (start + step < steps) & inside
        tile = (row * steps + start) * channels
        gate, x = tl.load(g_ptr + tile + at, seen, 0.0), tl.load(x_ptr + tile + at, seen, 0.0)
        gates, values, gate, end = runs_of(gate, x, STEPS)
        y, state = joined(gates, values, gate, end, state, RUNS)
        tl.store(y_ptr + tile + at, y, seen)


@triton.jit
def gated_gradient_kernel(
    g_ptr, first_ptr, h_ptr, told_ptr, dg_ptr, dx_ptr, dfirst_ptr, steps, channels,
    RUNS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Scans from the last step to the first: dx[t] = told[t] + gate[t+1] dx[t+1].

    `told` is the gradient of the result.
    """
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    back = steps_of(RUNS, STEPS)
    at = channel - back * channels
    first = tl.load(first_ptr + row * channels + channel, inside, 0.0).to(tl.float32)
    worth = tl.zeros([RUNS, CHANNELS], tl.float32)
    for start in tl.range(0, steps, RUNS * STEPS, num_stages=STAGES):  # pyright: ignore
        left = steps - 1 - start - back  # steps before each
        seen = (left >= 0) & inside
        tile = (row * steps + steps - 1 - start) * channels
        following = tl.load(g_ptr + tile + channels + at, seen & (left < steps - 1), 1.0)
        before = tl.load(h_ptr + tile - channels + at, (left > 0) & inside, 0.0).to(tl.float32)
        told = tl.load(told_ptr + tile + at, seen, 0.0)
        gates, values, gate, end = runs_of(following, told, STEPS)
        dx, worth = joined(gates, values, gate, end, worth, RUNS)
        tl.store(dx_ptr + tile + at, dx, seen)
        tl.store(dg_ptr + tile + at, dx * tl.where(left > 0, before, first), seen)
    gate = tl.load(g_ptr + row * steps * channels + channel, inside, 0.0).to(tl.float32)
    is_first = tl.arange(0, RUNS)[:, None] == 0
    to = dfirst_ptr + row * channels + tl.broadcast_to(channel[None, :], [RUNS, CHANNELS])
    tl.store(to, gate * worth, is_first & inside)


def _launch(kernel: Any, looking: Any, arrays: tuple[Tensor, ...], x: Tensor, c: Config) -> None:
    """Launches one program per sequence and block of channels.

    A block is `c.line` bytes of channels, or fewer if multiprocessors were idle. For few long
    sequences, launches the kernel `looking` instead, which also splits the steps.
    """
    (steps, width), size = x.shape[-2:], x.element_size()
    rows, processors = x.numel() // (steps * width), _processors(x.device)
    channels = min(c.line // size, 1 << (width - 1).bit_length())
    is_long = steps > 32 * c.warps * ACCESS // size // channels * c.steps
    if 2 * rows * -(-width // channels) < processors and is_long:
        gated_lookback_triton.launch(looking, arrays, x)
        return
    while channels * size > SECTOR and rows * -(-width // channels) < processors:
        channels //= 2
    runs = 32 * c.warps * ACCESS // size // channels
    grid = rows, -(-width // channels)
    runs = min(runs, 1 << (-(-steps // c.steps) - 1).bit_length())
    kernel[grid](*arrays, steps, width, runs, c.steps, channels, c.stages, num_warps=c.warps)


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return torch.cuda.get_device_properties(device).multi_processor_count


def gated(gate: Tensor, x: Tensor, first: Tensor) -> Tensor:
    """Scans `gate [..., n, d]` and `x [..., n, d]` from `first [..., d]`; all dense."""
    y = torch.empty_like(x)
    if y.numel():
        looking = gated_lookback_triton.gated_kernel
        _launch(gated_kernel, looking, (gate, x, first, y), x, FORWARD)
    return y


def gated_gradient(
    gate: Tensor, x: Tensor, first: Tensor, out: Tensor, told: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of `gate`, `x` and `first`; all dense."""
    made = torch.empty_like(gate), torch.empty_like(x), torch.zeros_like(first)
    if x.numel():
        looking, arrays = gated_lookback_triton.gated_gradient_kernel, (gate, first, out, told)
        _launch(gated_gradient_kernel, looking, (*arrays, *made), x, BACKWARD)
    return made
