"""The gradient of gated linear attention in Triton.

The state at the start of each chunk is recomputed, and its gradient from the end. Then all chunks
are processed concurrently. A gate affects everything that passes its step. Its gradient is the sum,
from its step on, of query gradients times queries, minus the same for keys. This holds within a
chunk. For what passes the chunk's end, it is the product of the state there and the state's
gradient.

The kernel is bound by memory, mainly by states and their gradients, one of each per chunk.
Source: Yang et al., "Gated linear attention transformers with hardware-efficient training", 2023.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from stack.ops.scan.chunkwise_features_triton import (
    CHUNK,
    CONFIG,
    LIMITS,
    Config,
    between,
    decayed,
    middle_of,
    width_of,
)

Tensor = torch.Tensor
FEATURES = 64  # per program


@triton.jit
def _gradients(told, told_back, q, k, g, is_query, is_key, width):
    """Returns the gradients of queries and keys from those of their products.

    `told`: the gradients of the products, `told_back` the same transposed. As in `_met`, decays are
    split at the middle of blocks; `is_query` and `is_key` mask the steps on either side.
    """
    t = tl.arange(0, g.shape[0])
    apart = between(g, middle_of(t, width), t)
    ahead = tl.where(is_query[:, None], tl.exp(apart), 0.0)
    behind = tl.where(is_key[:, None], tl.exp(-apart), 0.0)
    dq = tl.dot(told, (k * behind).to(k.dtype)) * ahead
    dk = tl.dot(told_back, (q * ahead).to(q.dtype)) * behind
    return dq, dk


@triton.jit
def gradient_kernel(
    q_ptr, k_ptr, v_ptr, gate_ptr, told_ptr, states_ptr, last_ptr, worth_ptr,
    dq_ptr, dk_ptr, dgate_ptr, steps, features, columns, scale, limit,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Computes gradients for some features of one chunk of one head."""
    chunk, line = tl.program_id(1), tl.program_id(2).to(tl.int64)
    t, column = tl.arange(0, CHUNK), tl.arange(0, COLUMNS)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row, col = t[:, None], t[None, :]
    is_feature, is_column = feature < features, column < columns
    step = chunk * CHUNK + row
    at, seen = (line * steps + step) * features + feature, (step < steps) & is_feature
    q = tl.load(q_ptr + at, seen, 0.0)
    k = tl.load(k_ptr + at, seen, 0.0)
    g = tl.load(gate_ptr + at, seen, 0.0)
    to, is_there = (line * steps + step) * columns + column, (step < steps) & is_column
    v = tl.load(v_ptr + to, is_there, 0.0)
    told = tl.load(told_ptr + to, is_there, 0.0)

    size = features * columns
    held, is_held = feature[:, None] * columns + column, is_feature[:, None] & is_column
    place = line * tl.num_programs(1) + chunk
    state = tl.load(states_ptr + place * size + held, is_held, 0.0)
    worth = tl.load(worth_ptr + place * size + held, is_held, 0.0)
    dq = tl.dot(told, tl.trans(state)) * tl.exp(between(g, t * 0 - 1, t))
    dk = tl.dot(v, tl.trans(worth)) * tl.exp(between(g, t, t * 0 + CHUNK))
    is_last = chunk + 1 == tl.num_programs(1)
    after_ptr = last_ptr + line * size if is_last else states_ptr + (place + 1) * size
    after = tl.load(after_ptr + held, is_held, 0.0)
    passing = tl.sum(after.to(tl.float32) * worth.to(tl.float32), 1)

    pairs = tl.where(row >= col, tl.dot(told, tl.trans(v)) * scale, 0.0).to(v.dtype)
    back = tl.where(col >= row, tl.dot(v, tl.trans(told)) * scale, 0.0).to(v.dtype)
    is_all = t >= 0
    if tl.min(tl.sum(g.to(tl.float32), 0)) >= -limit:
        near_q, near_k = _gradients(pairs, back, q, k, g, is_all, is_all, CHUNK)
    else:
        same = tl.where(row == col, pairs, 0.0)
        near_q, near_k = _gradients(same, same, q, k, g, is_all, is_all, 1)
        width = CHUNK
        while width > 1:
            is_later = 2 * t // width % 2 == 1
            is_near = (row // width == col // width) & (2 * row // width != 2 * col // width)
            near, near_back = tl.where(is_near, pairs, 0.0), tl.where(is_near, back, 0.0)
            more_q, more_k = _gradients(near, near_back, q, k, g, is_later, is_later == 0, width)
            near_q += more_q
            near_k += more_k
            width //= 2
    dq = dq * scale + near_q
    dk += near_k
    tl.store(dq_ptr + at, dq, seen)
    tl.store(dk_ptr + at, dk, seen)
    own = q * dq - k * dk
    later = passing + tl.sum(own, 0)
    tl.store(dgate_ptr + at, later[None, :] + own - tl.cumsum(own, 0), seen)


def gla_gradient(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, first: Tensor, out: Tensor, last: Tensor,
    told: Tensor, told_last: Tensor, scale: float, chunk: int, config: Config = CONFIG,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Takes dense operands, those of operator `scan.gla_gradient`; uses its own chunk size."""
    dq, dk, dv, dgate = map(torch.empty_like, (q, k, v, log_gate))
    if not v.numel():
        return dq, dk, dv, dgate, told_last.clone()
    (steps, features), columns = q.shape[-2:], v.shape[-1]
    scale = scale or features**-0.5
    made = decayed(q, k, log_gate, scale, config)
    lines, chunks = made.ends.shape[:2]
    states = q.new_empty(lines, chunks, features, columns)
    worths = torch.empty_like(states)
    ended = made.carry(made.queries, made.keys, v, first, states=states)
    dfirst = made.carry(made.keys, made.queries, told, told_last, dv, worths, is_reversed=True)
    launch: Any = gradient_kernel[(-(-features // FEATURES), chunks, lines)]
    launch(
        q, k, v, log_gate, told, states, ended, worths, dq, dk, dgate, steps, features, columns,
        scale, LIMITS[q.dtype], CHUNK, FEATURES, width_of(columns), num_warps=4,
    )  # fmt: skip
    return dq, dk, dv, dgate, dfirst
