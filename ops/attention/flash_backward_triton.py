"""Flash attention backward for Hopper, hand-written in Triton.

Weights are recomputed from scores and their log-sum-exp, so nothing of size s t is stored. One
kernel iterates over queries for each tile of keys (dK, dV), another over keys for each tile of
queries (dQ). This takes 7 matmuls instead of the necessary 5, but no atomic additions. The kernels
are bound by the matmuls and the exponentials between them. Source: Dao, "FlashAttention-2", 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from stack.ops.attention.flash_triton import tiles_of

Tensor = torch.Tensor


@dataclass(frozen=True)
class Config:
    """Tile sizes: a tile of `kept` rows stays, while tiles of `walked` rows are iterated over."""

    kept: int
    walked: int
    warps: int
    stages: int


# best on an H200 at 4,096 keys, by width of heads
KEYS = {64: Config(64, 64, 4, 3), 128: Config(64, 64, 4, 2)}
QUERIES = {64: Config(64, 64, 4, 3), 128: Config(128, 64, 8, 3)}


@triton.jit
def row_kernel(
    out_ptr, told_ptr, told_lse_ptr, row_ptr, count, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Computes D = sum(told * out) - told_lse for some rows: `told` and `told_lse` are the
    gradients of the result `out` and of the log-sum-exp."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < count
    places = rows[:, None].to(tl.int64) * WIDTH + tl.arange(0, WIDTH)[None, :]
    out = tl.load(out_ptr + places, inside[:, None], 0.0).to(tl.float32)
    told = tl.load(told_ptr + places, inside[:, None], 0.0).to(tl.float32)
    found = tl.sum(out * told, 1) - tl.load(told_lse_ptr + rows, inside, 0.0)
    tl.store(row_ptr + rows, found, inside)


@triton.jit
def keys_kernel(
    q_desc, k_desc, v_desc, told_desc, dk_desc, dv_desc, lse_ptr, row_ptr, length, scale,
    SHARE: tl.constexpr, KEPT: tl.constexpr, WALKED: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of keys and values of one head, from all query heads that share it."""
    group = tl.program_id(1)
    first = tl.program_id(0) * KEPT
    key = first + tl.arange(0, KEPT)
    k = k_desc.load([group, first, 0]).reshape(KEPT, WIDTH)
    v = v_desc.load([group, first, 0]).reshape(KEPT, WIDTH)
    dk = tl.zeros([KEPT, WIDTH], tl.float32)
    dv = tl.zeros([KEPT, WIDTH], tl.float32)
    begin = first // WALKED * WALKED if CAUSAL else 0
    for shared in range(SHARE):
        head = group * SHARE + shared
        rows_of_head = head.to(tl.int64) * length
        for start in tl.range(begin, length, WALKED):  # pyright: ignore
            row = start + tl.arange(0, WALKED)
            inside = row < length
            q = q_desc.load([head, start, 0]).reshape(WALKED, WIDTH)
            told = told_desc.load([head, start, 0]).reshape(WALKED, WIDTH)
            # a row past the end gets weights exp2(-inf) = 0
            lse = tl.load(lse_ptr + rows_of_head + row, inside, float("inf"))
            of_row = tl.load(row_ptr + rows_of_head + row, inside, 0.0)
            scores = tl.dot(k, q.T) * (scale * 1.4426950408889634)
            weights = tl.math.exp2(scores - (lse * 1.4426950408889634)[None, :])
            if CAUSAL:
                weights = tl.where(key[:, None] <= row[None, :], weights, 0.0)
            dv = tl.dot(weights.to(told.dtype), told, dv)
            to_scores = weights * (tl.dot(v, told.T) - of_row[None, :])
            dk = tl.dot(to_scores.to(q.dtype), q, dk)
    dk_desc.store([group, first, 0], (dk * scale).to(k.dtype).reshape(1, KEPT, WIDTH))
    dv_desc.store([group, first, 0], dv.to(v.dtype).reshape(1, KEPT, WIDTH))


@triton.jit
def queries_kernel(
    q_desc, k_desc, v_desc, told_desc, dq_desc, lse_ptr, row_ptr, length, scale,
    SHARE: tl.constexpr, KEPT: tl.constexpr, WALKED: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of queries of one head."""
    head = tl.program_id(1)
    group = head // SHARE
    tile = tl.program_id(0)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile  # the longest loops first
    first = tile * KEPT
    row = first + tl.arange(0, KEPT)
    rows_of_head = head.to(tl.int64) * length
    q = q_desc.load([head, first, 0]).reshape(KEPT, WIDTH)
    told = told_desc.load([head, first, 0]).reshape(KEPT, WIDTH)
    lse = tl.load(lse_ptr + rows_of_head + row, row < length, float("inf"))
    of_row = tl.load(row_ptr + rows_of_head + row, row < length, 0.0)
    dq = tl.zeros([KEPT, WIDTH], tl.float32)
    end = tl.minimum(first + KEPT, length) if CAUSAL else length
    for start in tl.range(0, end, WALKED):
        key = start + tl.arange(0, WALKED)
        k = k_desc.load([group, start, 0]).reshape(WALKED, WIDTH)
        v = v_desc.load([group, start, 0]).reshape(WALKED, WIDTH)
        scores = tl.dot(q, k.T) * (scale * 1.4426950408889634)
        weights = tl.math.exp2(scores - (lse * 1.4426950408889634)[:, None])
        seen = key[None, :] < length
        if CAUSAL:
            seen = seen & (key[None, :] <= row[:, None])
        weights = tl.where(seen, weights, 0.0)
        to_scores = weights * (tl.dot(told, v.T) - of_row[:, None])
        dq = tl.dot(to_scores.to(k.dtype), k, dq)
    dq_desc.store([head, first, 0], (dq * scale).to(q.dtype).reshape(1, KEPT, WIDTH))


def gradients(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, told: Tensor, told_lse: Tensor,
    causal: bool = False, keys: Config | None = None, queries: Config | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q [B, H, S, D], k and v [B, G, S, D], dense, in bf16 or f16; D is 64 or 128.

    `out` and `lse` are the results of `flash_triton.attention_with_lse`; `told` and `told_lse`
    are their gradients.
    """
    batch, heads, length, width = q.shape
    groups = k.shape[1]
    dense = torch.contiguous_format
    dq, dk, dv = (torch.empty_like(x, memory_format=dense) for x in (q, k, v))
    if not q.numel():
        return dq, dk, dv
    rows = torch.empty(lse.shape, dtype=torch.float32, device=q.device)
    launch: Any = row_kernel[(triton.cdiv(rows.numel(), 32),)]
    launch(out, told.to(q.dtype).contiguous(), told_lse, rows, rows.numel(), 32, width)

    told = told.to(q.dtype)
    share, scale = heads // groups, 1 / math.sqrt(width)
    for kernel, config, count in (
        (keys_kernel, keys or KEYS[width], batch * groups),
        (queries_kernel, queries or QUERIES[width], batch * heads),
    ):
        kept, walked = config.kept, config.walked
        of_keys = kernel is keys_kernel
        sizes = (walked, kept, kept, walked) if of_keys else (kept, walked, walked, kept)
        made = (dk, dv) if of_keys else (dq,)
        launch = kernel[(triton.cdiv(length, kept), count)]
        launch(
            *map(tiles_of, (q, k, v, told), sizes), *(tiles_of(x, kept) for x in made),
            lse, rows, length, scale, share, kept, walked, width, causal,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return dq, dk, dv


def launched(*tensors: Tensor, causal: bool, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The entry point for the operator `attention.with_lse_gradient`."""
    return gradients(*tensors, causal=causal)
