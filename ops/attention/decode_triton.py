"""Decoding in Triton: one query per sequence against a long cache, contiguous or in pages.

Keys are split among programs, because one sequence alone would leave most of the GPU idle. A second
kernel merges the partial results. All heads that share keys are one tile of queries, so that each
key is read once. The kernel is bound by memory: every key and value is read once.
Sources: Dao et al., "Flash-Decoding", 2023; Kwon et al., "PagedAttention", 2023.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor
COLUMNS = 32  # keys per tile: best on an H200
COLUMNS_OF_PAGES = 64
PROGRAMS = 528  # four per multiprocessor of an H200: enough loads in flight
LEAST = 256  # minimum number of keys per program


@triton.jit
def split_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, out_ptr, lse_ptr, scale, groups, pages,
    of_block, of_key, of_group,
    SHARE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROOM: tl.constexpr,
    WIDTH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Computes one part of the keys, for one sequence and head of keys. `scale` includes log2(e).

    Strides in elements: `of_block` between blocks (a block is a page of ROOM keys, or a whole
    sequence if ROOM is 0), `of_key` between keys, `of_group` between heads.
    """
    part, group, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(length_ptr + sequence)
    share = tl.cdiv(tl.cdiv(length, SPLITS), COLUMNS) * COLUMNS
    row = tl.arange(0, ROWS)
    head = (sequence * groups + group) * SHARE + row
    place = tl.arange(0, WIDTH)
    q = tl.load(q_ptr + head[:, None] * WIDTH + place[None, :], (row < SHARE)[:, None], 0.0)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)  # finite: a part may contain no key
    end = tl.minimum((part + 1) * share, length)
    tiles = tl.cdiv(tl.maximum(end - part * share, 0), COLUMNS)
    for turn in tl.range(0, tiles):
        # heads start at different keys: the strides between their caches are powers of two, so all
        # would access the same memory channel
        tile = (turn + group + sequence) % tiles
        key = part * share + tile * COLUMNS + tl.arange(0, COLUMNS)
        seen = key < end
        if ROOM:
            block = tl.load(table_ptr + sequence * pages + key // ROOM, seen, 0).to(tl.int64)
            first = block * of_block + (key % ROOM) * of_key
        else:
            first = sequence.to(tl.int64) * of_block + key * of_key
        at = (first + group * of_group)[:, None] + place[None, :]
        k = tl.load(k_ptr + at, seen[:, None], 0.0)
        scores = tl.where(seen[None, :], tl.dot(q, k.T) * scale, float("-inf"))
        newest = tl.maximum(top, tl.max(scores, 1))
        weights = tl.math.exp2(scores - newest[:, None])
        correction = tl.math.exp2(top - newest)
        total = total * correction + tl.sum(weights, 1)
        v = tl.load(v_ptr + at, seen[:, None], 0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * correction[:, None])
        top = newest
    out = acc / tl.maximum(total, 1e-30)[:, None]
    slot = head * SPLITS + part
    inside = row < SHARE
    tl.store(out_ptr + slot[:, None] * WIDTH + place[None, :], out, inside[:, None])
    tl.store(lse_ptr + slot, top + tl.log2(tl.maximum(total, 1e-30)), inside)


@triton.jit
def merge_kernel(out_ptr, lse_ptr, made_ptr, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    """Merges the parts of one head of one sequence, weighted by their sums of exponentials."""
    head = tl.program_id(0)
    part, place = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    lse = tl.load(lse_ptr + head * SPLITS + part)
    weights = tl.math.exp2(lse - tl.max(lse, 0))
    weights = weights / tl.sum(weights, 0)
    at = (head * SPLITS + part)[:, None] * WIDTH + place[None, :]
    out = tl.sum(tl.load(out_ptr + at) * weights[:, None], 0)
    tl.store(made_ptr + head * WIDTH + place, out.to(made_ptr.dtype.element_ty))


def _launch(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, scale: float, keys: int,
    room: int, strides: tuple[int, int, int],
) -> Tensor:  # fmt: skip
    batch, heads, width = q.shape[0], q.shape[1], q.shape[-1]
    groups = k.shape[2] if room else k.shape[1]
    share = heads // groups
    most = max(1, min(PROGRAMS // (batch * groups), keys // LEAST, 64))
    splits = 1 << (most.bit_length() - 1)
    outs = torch.empty(batch * heads, splits, width, dtype=torch.float32, device=q.device)
    lses = torch.empty(batch * heads, splits, dtype=torch.float32, device=q.device)
    made = torch.empty_like(q)
    if not q.numel():
        return made
    rows = max(16, triton.next_power_of_2(share))
    columns = COLUMNS_OF_PAGES if room else COLUMNS
    launch: Any = split_kernel[(splits, groups, batch)]
    launch(
        q, k, v, table, lengths, outs, lses, (scale or width**-0.5) * math.log2(math.e), groups,
        table.shape[-1], *strides, share, rows, columns, room, width, splits,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    launch = merge_kernel[(batch * heads,)]
    launch(outs, lses, made, splits, width, num_warps=2)
    return made


def paged(
    q: Tensor, pool_k: Tensor, pool_v: Tensor, table: Tensor, lengths: Tensor, *,
    scale: float = 0.0, **_: Any,
) -> Tensor:  # fmt: skip
    """Decodes with keys and values in pages. All operands are dense.

    Shapes: `q [b, h, 1, d]`, pools `[p, n, g, d]`, `table [b, m]` and `lengths [b]`.
    """
    room, groups, width = pool_k.shape[1:]
    keys = table.shape[-1] * room
    strides = (room * groups * width, groups * width, width)
    return _launch(q, pool_k, pool_v, table, lengths, scale, keys, room, strides)


def cached(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, *, scale: float = 0.0, **_: Any
) -> Tensor:
    """Decodes with `q [b, h, 1, d]`, `k` and `v` `[b, g, t, d]`, `lengths [b]`, all dense."""
    groups, keys, width = k.shape[1:]
    strides = (groups * keys * width, width, keys * width)
    return _launch(q, k, v, lengths[:, None], lengths, scale, keys, 0, strides)
