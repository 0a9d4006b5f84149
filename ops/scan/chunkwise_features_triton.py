"""Gated linear attention in Triton, in two passes; it has a decay per key feature and step.

Uses the algebra of `chunkwise`. All that depends on gates is computed for all chunks concurrently
(`decayed_kernel`): queries decayed since the start of their chunk, keys decayed until its end, and
the products of both within the chunk. The rest are matmuls, with a state that a program carries in
registers from chunk to chunk (`carried_kernel`).

The log decay between two steps is the sum of the gates between them. It is computed as a matmul
with a matrix of 0, 1 and -1, so that no large sums are subtracted. The decay of a pair of steps is
split at the middle of the chunk: the query decays from there on, the key until there. For a pair
that does not straddle the middle, one of the two exponents is positive. If gates are so strong that
it would overflow, only pairs on different sides of the middle are split there. Pairs within one
half are split at its middle, and so on, down to single steps.

The first pass takes twice the time of its memory accesses, because it has matmuls with 0 and 1 and
four exponentials per feature. The second is bound by memory, as it reads the decayed operands
again.
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
LIMITS = {torch.bfloat16: 80.0, torch.float16: 8.0}  # largest positive exponent


@dataclass(frozen=True)
class Config:
    """Launch parameters: state columns per program, warps, and prefetched tiles."""

    columns: int
    warps: int
    stages: int


CONFIG = Config(64, 4, 3)


@triton.jit
def between(g, first, last):
    """Sums the gates after step `first` up to `last`; negative if `last` comes before `first`."""
    step = tl.arange(0, g.shape[0])[None, :]
    ahead = (step > first[:, None]) & (step <= last[:, None])
    behind = (step > last[:, None]) & (step <= first[:, None])
    return tl.dot(ahead.to(g.dtype) - behind.to(g.dtype), g)


@triton.jit
def middle_of(t, width):
    """The last step of the first half of t's block of `width` steps; t itself for width 1."""
    return t // width * width + tl.maximum(width // 2, 1) - 1


@triton.jit
def _met(q, k, g, width):
    """Returns the products of all queries and keys, with the decay between their steps.

    The decay is split at the middle of blocks of `width` steps: queries decay since the middle,
    keys until it. For pairs on different sides of a middle, both factors are at most 1.
    """
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
    """Computes one chunk of one head."""
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
    """Carries some columns of the state of one head from chunk to chunk.

    READ: write results. KEPT: write the state at the start of each chunk. REVERSED: from the end.
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
class DecayedOperands:
    """Decayed operands per chunk: `queries` since its start, `keys` until its end.

    `pairs [lines, chunks, c, c]` are their products, `ends [lines, chunks, d]` the decay of a state
    over a chunk.
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
        """Launches `carried_kernel`: carries the state from `first` through all chunks, and returns
        the last state. Writes the results to `out`, and the state at the start of each chunk to
        `states`, if given."""
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
    """Returns the width of a tile for `size` features: a power of two, at least 64, because Triton
    3.6 reads out of bounds with rows of less than 128 bytes."""
    return max(64, int(triton.next_power_of_2(size)))


def decayed(
    q: Tensor, k: Tensor, log_gate: Tensor, scale: float, config: Config
) -> DecayedOperands:
    """Launches `decayed_kernel`: computes queries, keys, their products and decays per chunk, for
    dense operands with at least one step."""
    steps, features = q.shape[-2:]
    lines, chunks = q.numel() // (steps * features), -(-steps // CHUNK)
    made = DecayedOperands(
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
    """Takes dense operands, those of operator `scan.gla`; uses its own chunk size."""
    out = torch.empty_like(v)
    if not v.numel():
        return out, torch.empty_like(first)
    made = decayed(q, k, log_gate, scale or q.shape[-1] ** -0.5, config)
    return out, made.carry(made.queries, made.keys, v, first, out)
