"""Gated scans in Triton that carry a state from tile to tile: one pass over memory, the limit.

A program walks some channels of one sequence, as many as a cache line holds, with the next tiles
under way. Each of its threads has runs of consecutive steps: most of a scan is done in registers,
and threads tell each other what a run as a whole does.
Source: Martin and Cundy, "Parallelizing linear recurrent neural nets", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
LINE, SECTOR = 128, 32  # bytes of a row that memory moves best, and at least
ACCESS = 16  # bytes that a thread moves at once


@dataclass(frozen=True)
class Config:
    """`steps` of a run; `stages` of tiles are under way."""

    steps: int
    warps: int
    stages: int


FORWARD = Config(4, 8, 3)
BACKWARD = Config(4, 8, 3)


@triton.jit
def after(gate1, x1, gate2, x2):
    """h -> gate h + x, one after the other."""
    return gate1 * gate2, gate2 * x1 + x2


@triton.jit
def _ends(tile, STEPS: tl.constexpr):
    """The last step of each run."""
    is_last = tl.arange(0, STEPS)[None, :, None] == STEPS - 1
    return tl.sum(tl.where(is_last, tile, 0.0), 1)


@triton.jit
def runs_of(gate, x, STEPS: tl.constexpr):
    """Of a tile [runs, steps, channels] each run by itself: its maps so far, and all of it."""
    gates, values = tl.associative_scan((gate.to(tl.float32), x.to(tl.float32)), 1, after)
    return gates, values, _ends(gates, STEPS), _ends(values, STEPS)


@triton.jit
def joined(gates, values, gate, end, state, RUNS: tl.constexpr):
    """States of a tile by its runs, and what comes after it.

    The first row of `state [runs, channels]` is what comes before.
    """
    is_first = tl.arange(0, RUNS)[:, None] == 0
    end = tl.where(is_first, gate * state + end, end)
    ends = tl.associative_scan((gate, end), 0, after)[1]
    run_before = (tl.arange(0, RUNS)[:, None] + RUNS - 1) % RUNS  # of the first: the last
    ends = tl.gather(ends, tl.broadcast_to(run_before, ends.shape), 0)
    before = tl.where(is_first, state, ends)
    return gates * before[:, None, :] + values, ends


@triton.jit
def steps_of(RUNS: tl.constexpr, STEPS: tl.constexpr):
    """The steps of a tile, from its start."""
    return tl.arange(0, RUNS)[:, None, None] * STEPS + tl.arange(0, STEPS)[None, :, None]


@triton.jit
def gated_kernel(
    g_ptr, x_ptr, first_ptr, y_ptr, steps, channels,
    RUNS: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some channels of one sequence, from the first step to the last."""
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
    """The same from the last step to the first: dx[t] = told[t] + gate[t+1] dx[t+1]."""
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
        before = tl.load(h_ptr + tile - channels + at, (left > 0) & inside, 0.0)
        told = tl.load(told_ptr + tile + at, seen, 0.0)
        following = tl.where(left >= 0, following, 1.0)
        gates, values, gate, end = runs_of(following, told, STEPS)
        dx, worth = joined(gates, values, gate, end, worth, RUNS)
        tl.store(dx_ptr + tile + at, dx, seen)
        tl.store(dg_ptr + tile + at, dx * tl.where(left > 0, before.to(tl.float32), first), seen)
    gate = tl.load(g_ptr + row * steps * channels + channel, inside, 0.0).to(tl.float32)
    is_first = tl.arange(0, RUNS)[:, None] == 0
    to = dfirst_ptr + row * channels + tl.broadcast_to(channel[None, :], [RUNS, CHANNELS])
    tl.store(to, gate * worth, is_first & inside)


def _launch(
    kernel: Any, arrays: tuple[Tensor, ...], x: Tensor, config: Config, channels: int = 0
) -> None:
    """Programs of some channels each; fewer where there are less programs than processors."""
    steps, width = x.shape[-2:]
    rows, size = x.numel() // (steps * width), x.element_size()
    if not channels:
        channels = LINE // size
        while channels * size > SECTOR and rows * -(-width // channels) < processors(x.device):
            channels //= 2
    channels = min(channels, triton.next_power_of_2(width))
    runs = 32 * config.warps * ACCESS // size // channels
    runs = min(runs, triton.next_power_of_2(-(-steps // config.steps)))
    launch: Any = kernel[(rows, -(-width // channels))]
    launch(
        *arrays, steps, width, runs, config.steps, channels, config.stages, num_warps=config.warps
    )  # fmt: skip


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def gated(
    gate: Tensor, x: Tensor, first: Tensor, config: Config = FORWARD, channels: int = 0
) -> Tensor:
    """`gate [..., n, d]`, `x [..., n, d]`, `first [..., d]`, dense."""
    y = torch.empty_like(x)
    if y.numel():
        _launch(gated_kernel, (gate, x, first, y), x, config, channels)
    return y


def gated_gradient(
    gate: Tensor,
    x: Tensor,
    first: Tensor,
    out: Tensor,
    told: Tensor,
    config: Config = BACKWARD,
    channels: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `gate`, `x` and `first`; all dense."""
    made = torch.empty_like(gate), torch.empty_like(x), torch.zeros_like(first)
    if x.numel():
        _launch(gated_gradient_kernel, (gate, first, out, told, *made), x, config, channels)
    return made
