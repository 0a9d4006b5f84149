"""Decoding with latent keys in Triton: the cache of a sequence is read once, for all heads.

A tile of keys [n, 512] is also the tile of values, and stays on the chip between the two matmuls.
Keys are split among programs and merged, as in `decode_triton`. With 128 heads, the matmuls per
byte of cache take tensor cores as long as memory takes to load the byte, so that memory alone no
longer limits decoding. Source: DeepSeek-V2, 2024.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from stack.ops.attention.decode_triton import merge_kernel

Tensor = torch.Tensor
HEADS = 64  # per program
COLUMNS = 32  # keys per tile
PROGRAMS = 264
LEAST = 128  # minimum number of keys per program


@triton.jit
def split_kernel(
    q_ptr, q_rope_ptr, latent_ptr, rope_ptr, out_ptr, lse_ptr, scale, heads, keys,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, ROPE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Computes attention of a tile of heads to one part of the keys of one sequence; `merge_kernel`
    combines the parts. `scale` includes log2(e)."""
    part, tile, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    share = tl.cdiv(tl.cdiv(keys, SPLITS), COLUMNS) * COLUMNS
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = row < heads
    head = sequence * heads + row
    wide, narrow = tl.arange(0, WIDTH), tl.arange(0, ROPE)
    q = tl.load(q_ptr + head[:, None] * WIDTH + wide[None, :], inside[:, None], 0.0)
    q_rope = tl.load(q_rope_ptr + head[:, None] * ROPE + narrow[None, :], inside[:, None], 0.0)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)  # finite: a part may contain no key
    for start in tl.range(part * share, tl.minimum((part + 1) * share, keys), COLUMNS):
        key = start + tl.arange(0, COLUMNS)
        seen = key < keys
        place = (sequence.to(tl.int64) * keys + key)[:, None]
        latent = tl.load(latent_ptr + place * WIDTH + wide[None, :], seen[:, None], 0.0)
        rope = tl.load(rope_ptr + place * ROPE + narrow[None, :], seen[:, None], 0.0)
        scores = tl.dot(q_rope, rope.T, tl.dot(q, latent.T))
        scores = tl.where(seen[None, :], scores * scale, float("-inf"))
        newest = tl.maximum(top, tl.max(scores, 1))
        weights = tl.math.exp2(scores - newest[:, None])
        correction = tl.math.exp2(top - newest)
        total = total * correction + tl.sum(weights, 1)
        acc = tl.dot(weights.to(latent.dtype), latent, acc * correction[:, None])
        top = newest
    out = acc / tl.maximum(total, 1e-30)[:, None]
    slot = head * SPLITS + part
    tl.store(out_ptr + slot[:, None] * WIDTH + wide[None, :], out, inside[:, None])
    tl.store(lse_ptr + slot, top + tl.log2(tl.maximum(total, 1e-30)), inside)


def absorbed(
    q: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, *, scale: float, **_: Any
) -> Tensor:
    """Decodes with latent keys.

    `q [b, h, 1, c]`, `q_rope [b, h, 1, r]`, `latent [b, t, c]`, `k_rope [b, t, r]`, all dense.
    """
    batch, heads, width = q.shape[0], q.shape[1], q.shape[-1]
    keys, rope = k_rope.shape[1:]
    rows = min(HEADS, max(16, 1 << (heads - 1).bit_length()))
    tiles: int = -(-heads // rows)
    made = torch.empty_like(q)
    if not made.numel():
        return made
    most = max(1, min(PROGRAMS // (batch * tiles), keys // LEAST, 32))
    splits = 1 << (most.bit_length() - 1)
    outs = torch.empty(batch * heads, splits, width, dtype=torch.float32, device=q.device)
    lses = torch.empty(batch * heads, splits, dtype=torch.float32, device=q.device)
    launch: Any = split_kernel[(splits, tiles, batch)]
    launch(
        q, q_rope, latent, k_rope, outs, lses, scale * math.log2(math.e), heads, keys,
        rows, COLUMNS, width, rope, splits, num_warps=8, num_stages=2,
    )  # fmt: skip
    launch = merge_kernel[(batch * heads,)]
    launch(outs, lses, made, splits, width, num_warps=4)
    return made
