"""Recurrences of matrix states with one decay per head and step, in Triton.

Uses the algebra of `chunkwise` in one pass. A program carries the state of a head, or some of its
columns, in registers from chunk to chunk, so that only operands and results go through memory. The
kernel is bound by four matmuls per chunk, each of which waits for another, and the memory they
read.
Source: Dao and Gu, 2024; Yang et al., 2023, for a state that stays in registers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
CHUNK, COLUMNS = 64, 64


@triton.jit
def decayed_kernel(
    q_ptr, k_ptr, v_ptr, dt_ptr, rate_ptr, skip_ptr, first_ptr, out_ptr, last_ptr,
    steps, features, columns, heads, scale,
    IS_SSD: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Runs the recurrence of one head, chunk by chunk, for some columns of its state: writes their
    results and last state. For SSD, all heads of a sequence share the keys."""
    line = tl.program_id(0).to(tl.int64)
    head = line % heads
    keys = (line // heads if IS_SSD else line) * steps * features
    t = tl.arange(0, CHUNK)
    feature, column = tl.arange(0, FEATURES), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_feature, is_column = feature < features, column < columns
    held = (line * features + feature[:, None]) * columns + column
    is_held = is_feature[:, None] & is_column
    state = tl.load(first_ptr + held, is_held, 0.0).to(tl.float32)
    rate = tl.load(rate_ptr + head).to(tl.float32)
    skip = tl.load(skip_ptr + head).to(tl.float32)
    for start in tl.range(0, steps, CHUNK, num_stages=STAGES):  # pyright: ignore
        step = start + t
        seen = step < steps
        at = keys + step[:, None] * features + feature
        q = tl.load(q_ptr + at, seen[:, None] & is_feature, 0.0)
        k = tl.load(k_ptr + at, seen[:, None] & is_feature, 0.0)
        at = (line * steps + step[:, None]) * columns + column
        v = tl.load(v_ptr + at, seen[:, None] & is_column, 0.0)
        dt = tl.where(seen, 1.0, 0.0)
        if IS_SSD:
            dt = tl.load(dt_ptr + line * steps + step, seen, 0.0).to(tl.float32)
        total = tl.cumsum(dt * rate, 0)
        end = tl.sum(dt * rate, 0)
        weight = tl.exp(total[:, None] - total[None, :]) * dt[None, :]
        weight = tl.where(t[:, None] >= t[None, :], weight, 0.0)
        pairs = (tl.dot(q, tl.trans(k)) * weight).to(q.dtype)
        out = tl.dot(q, state.to(q.dtype)) * tl.exp(total)[:, None]
        out = tl.dot(pairs, v, out) * scale
        written = (v * (dt * tl.exp(end - total))[:, None]).to(k.dtype)
        state = tl.dot(tl.trans(k), written, state * tl.exp(end))
        if IS_SSD:
            out += skip * v
        tl.store(out_ptr + at, out, seen[:, None] & is_column)
    tl.store(last_ptr + held, state, is_held)


def _run(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, rate: Tensor, skip: Tensor, first: Tensor,
    scale: float, is_ssd: bool, chunk: int = CHUNK, warps: int = 4, stages: int = 2,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, last = torch.empty_like(v), torch.empty_like(first)
    (steps, features), columns, heads = q.shape[-2:], v.shape[-1], rate.numel()
    lines = v.numel() // (steps * columns)
    if v.numel():
        wide = max(16, min(COLUMNS, triton.next_power_of_2(columns)))
        launch: Any = decayed_kernel[(lines, -(-columns // wide))]
        launch(
            q, k, v, dt, rate, skip, first, out, last, steps, features, columns, heads, scale,
            is_ssd, chunk, max(16, triton.next_power_of_2(features)), wide, stages,
            num_warps=warps,
        )  # fmt: skip
    return out, last


def ssd(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, first: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Takes dense operands, those of operator `scan.ssd`; uses its own chunk size."""
    return _run(c, b, x, dt, a, skip, first, 1.0, True)


def retention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, first: Tensor, scale: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """Takes dense operands, those of operator `scan.retention`; uses its own chunk size."""
    scale = scale or q.shape[-1] ** -0.5
    return _run(q, k, v, log_decay, log_decay, log_decay, first, scale, False)
