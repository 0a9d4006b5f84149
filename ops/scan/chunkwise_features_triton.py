"""Gated linear attention in Triton: a decay for each key feature and step, in two passes.

The algebra of `chunkwise`. What depends on gates is done for all chunks at once (`decayed_kernel`):
queries since the start of their chunk, keys until its end, and the products of both within it.
What is left is products of matrices, with a state that a program carries in registers from chunk to
chunk (`carried_kernel`).

Decays are sums of the gates between two steps: products with a matrix of 0, 1 and -1, so that no
large sums are subtracted. A pair of steps meets in the middle of a chunk: the query forgets since
then, the key until then, and what the key has to forget for a query before the middle is undone, by
an exponent above 0. Where gates are so strong that it would overflow, only pairs on either side of
the middle meet there, and those of each half in its middle, down to single steps.

What limits it: the first pass, which takes twice the time of its memory: it has products with 0
and 1 and four exponentials of each feature. Then memory, which decayed operands take once more.
Source: Yang et al., "Gated linear attention transformers with hardware-efficient training", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
CHUNK = 64
LIMITS = {torch.bfloat16: 80.0, torch.float16: 8.0}  # of an exponent above 0


@dataclass(frozen=True)
class Config:
    """Columns of the state that are a program's, its warps, tiles under way."""

    columns: int
    warps: int
    stages: int


CONFIG = Config(64, 4, 3)


@triton.jit
def between(g, first, last):
    """Sums of the gates after step `first` up to `last`, less where these are behind each other."""
    step = tl.arange(0, g.shape[0])[None, :]
    ahead = (step > first[:, None]) & (step <= last[:, None])
    behind = (step > last[:, None]) & (step <= first[:, None])
    return tl.dot(ahead.to(g.dtype) - behind.to(g.dtype), g)


@triton.jit
def middle_of(t, width):
    """The last step of the first half of its block of `width` steps; of one step that."""
    return t // width * width + tl.maximum(width // 2, 1) - 1


@triton.jit
def _met(q, k, g, width):
    """Products of queries and keys; gates meet in the middle of blocks of so many steps."""
    t = tl.arange(0, g.shape[0])
    apart = between(g, middle_of(t, width), t)
    query = (q * tl.exp(apart)).to(q.dtype)
    key = (k * tl.exp(-apart)).to(k.dtype)
    return tl.dot(query, tl.trans(key))


@triton.jit
def decayed_kernel(
    q_ptr, k_ptr, gate_ptr, query_ptr, key_ptr, pairs_ptr, end_ptr,
    steps, features, scale, limit, CHUNK: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """One chunk of one head."""
    chunk, line = tl.program_id(0), tl.program_id(1).to(tl.int64)
    t, feature = tl.arange(0, CHUNK), tl.arange(0, FEATURES)
    row, col = t[:, None], t[None, :]
    at = (line * steps + chunk * CHUNK + row) * features + feature
    seen = (chunk * CHUNK + row < steps) & (feature < features)
    q = tl.load(q_ptr + at, seen, 0.0)
    k = tl.load(k_ptr + at, seen, 0.0)
    g = tl.load(gate_ptr + at, seen, 0.0)

    tl.store(query_ptr + at, q * tl.exp(between(g, t * 0 - 1, t)) * scale, seen)
    tl.store(key_ptr + at, k * tl.exp(between(g, t, t * 0 + CHUNK)), seen)
    total = tl.sum(g.to(tl.float32), 0)
    place = line * tl.num_programs(0) + chunk
    tl.store(end_ptr + place * features + feature, tl.exp(total), feature < features)
    if tl.min(total) >= -limit:
        pairs = _met(q, k, g, CHUNK)
    else:
        pairs = _met(q, k, g, 1)
        width = CHUNK
        while width > 1:
            is_pair = (row // width == col // width) & (2 * row // width > 2 * col // width)
            pairs = tl.where(is_pair, _met(q, k, g, width), pairs)
            width //= 2
    pairs = tl.where(row >= col, pairs * scale, 0.0)
    tl.store(pairs_ptr + (place * CHUNK + row) * CHUNK + col, pairs)


@triton.jit
def carried_kernel(
    q_ptr, k_ptr, v_ptr, pairs_ptr, end_ptr, first_ptr, out_ptr, last_ptr, states_ptr,
    steps, features, columns,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    READ: tl.constexpr, KEPT: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """Some columns of the state of one head, from chunk to chunk.

    READ: results are asked for; KEPT: the state ahead of each chunk is; REVERSED: from the end.
    """
    line = tl.program_id(1).to(tl.int64)
    t, feature = tl.arange(0, CHUNK), tl.arange(0, FEATURES)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_feature, is_column = feature < features, column < columns
    held = feature[:, None] * columns + column
    is_held = is_feature[:, None] & is_column
    state = tl.load(first_ptr + line * features * columns + held, is_held, 0.0).to(tl.float32)
    chunks = tl.cdiv(steps, CHUNK)
    for number in tl.range(0, chunks, num_stages=STAGES):  # pyright: ignore
        chunk = chunks - 1 - number if REVERSED else number
        place = line * chunks + chunk
        if KEPT:
            tl.store(states_ptr + place * features * columns + held, state, is_held)
        step = chunk * CHUNK + t[:, None]
        at = (line * steps + step) * features + feature
        k = tl.load(k_ptr + at, (step < steps) & is_feature, 0.0)
        to = (line * steps + step) * columns + column
        v = tl.load(v_ptr + to, (step < steps) & is_column, 0.0)
        end = tl.load(end_ptr + place * features + feature, is_feature, 0.0)
        if READ:
            q = tl.load(q_ptr + at, (step < steps) & is_feature, 0.0)
            pairs = tl.load(pairs_ptr + (place * CHUNK + t[:, None]) * CHUNK + t)
            pairs = tl.trans(pairs) if REVERSED else pairs
            out = tl.dot(pairs, v, tl.dot(q, state.to(q.dtype)))
            tl.store(out_ptr + to, out, (step < steps) & is_column)
        state = tl.dot(tl.trans(k), v, state * end[:, None])
    tl.store(last_ptr + line * features * columns + held, state, is_held)


@dataclass(frozen=True)
class Decayed:
    """Operands of a chunk and their decays: `queries` since its start, `keys` until its end.

    `pairs [lines, chunks, c, c]` of both, `ends [lines, chunks, d]` what is left of a state.
    """

    queries: Tensor
    keys: Tensor
    pairs: Tensor
    ends: Tensor
    config: Config

    def carry(
        self, q: Tensor, k: Tensor, v: Tensor, first: Tensor, out: Tensor | None = None,
        states: Tensor | None = None, is_reversed: bool = False,
    ) -> Tensor:  # fmt: skip
        """The last state, of operands with their decays; fills in results and states."""
        last, config = torch.empty_like(first), self.config
        (steps, features), columns = q.shape[-2:], v.shape[-1]
        some = min(config.columns, width_of(columns))
        launch: Any = carried_kernel[(-(-columns // some), self.ends.shape[0])]
        launch(
            q, k, v, self.pairs, self.ends, first, v if out is None else out, last,
            first if states is None else states, steps, features, columns,
            CHUNK, width_of(features), some, config.stages,
            out is not None, states is not None, is_reversed, num_warps=config.warps,
        )  # fmt: skip
        return last


def width_of(size: int) -> int:
    """The tile for so many features: Triton 3.6 reads past tiles of less than 128 bytes a row."""
    return max(64, int(triton.next_power_of_2(size)))


def decayed(q: Tensor, k: Tensor, log_gate: Tensor, scale: float, config: Config) -> Decayed:
    """Of dense operands of at least a step."""
    steps, features = q.shape[-2:]
    lines, chunks = q.numel() // (steps * features), -(-steps // CHUNK)
    made = Decayed(
        torch.empty_like(q),
        torch.empty_like(k),
        q.new_empty(lines, chunks, CHUNK, CHUNK),
        q.new_empty(lines, chunks, features, dtype=torch.float32),
        config,
    )
    launch: Any = decayed_kernel[(chunks, lines)]
    launch(
        q, k, log_gate, made.queries, made.keys, made.pairs, made.ends, steps, features,
        scale, LIMITS[q.dtype], CHUNK, width_of(features), num_warps=4,
    )  # fmt: skip
    return made


def gla(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, first: Tensor, scale: float, chunk: int,
    config: Config = CONFIG,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Dense operands, as those of operator `scan.gla`; chunks are the kernel's own."""
    out = torch.empty_like(v)
    if not v.numel():
        return out, torch.empty_like(first)
    made = decayed(q, k, log_gate, scale or q.shape[-1] ** -0.5, config)
    return out, made.carry(made.queries, made.keys, v, first, out)
