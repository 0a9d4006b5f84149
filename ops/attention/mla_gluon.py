"""Decoding with latent keys in Gluon: the cache of a sequence is read once for 64 heads.

A tile of keys [64, 512] is also the tile of values, and stays in shared memory between the two
matmuls. Two warp groups share them: each has half of the keys for the scores, and half of the
features for the result, whose 64 x 512 numbers fill the registers of both. Keys are split among
programs and merged, as in `decode_triton`. The kernel is bound by memory with 64 heads. With 128 it
is bound by the matmuls, which softmax does not overlap.
Source: DeepSeek-V2, 2024.
"""

# only Gluon's compiler knows its language:
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false

from __future__ import annotations

import math
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from stack.ops.attention.decode_triton import merge_kernel
from stack.ops.attention.ring_gluon import processors, tiles_of

Tensor = torch.Tensor
HEADS = 64  # per program: a tile of queries
COLUMNS = 64  # keys per tile
STAGES = 2
LEAST = 128  # minimum number of keys per program


@gluon.jit
def _bring(latent_desc, rope_desc, latent, rope, ready, sequence, start, end, tile):
    """Starts loading a tile of latent keys and rope keys; does nothing for a tile past `end`."""
    STAGES: gl.constexpr = latent.shape[0]
    COLUMNS: gl.constexpr = latent.shape[2]
    at = tile % STAGES
    key = start + tile * COLUMNS
    some = key < end
    whole: gl.constexpr = latent_desc.block_type.nbytes + rope_desc.block_type.nbytes
    mbarrier.expect(ready.index(at), whole, pred=some)
    place = [sequence, key, 0]
    tma.async_copy_global_to_shared(latent_desc, place, ready.index(at), latent.index(at), some)
    tma.async_copy_global_to_shared(rope_desc, place, ready.index(at), rope.index(at), some)


@gluon.jit(do_not_specialize=["heads", "keys"])
def split_kernel(
    q_desc, q_rope_desc, latent_desc, rope_desc, out_ptr, lse_ptr, scale, heads, keys,
    SPLITS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Computes attention of a tile of heads to one part of the keys of one sequence; `merge_kernel`
    combines the parts. `scale` includes log2(e)."""
    kind: gl.constexpr = q_desc.dtype
    ROWS: gl.constexpr = q_desc.block_type.shape[1]
    WIDTH: gl.constexpr = q_desc.block_type.shape[2]
    ROPE: gl.constexpr = q_rope_desc.block_type.shape[2]
    COLUMNS: gl.constexpr = latent_desc.block_type.shape[1]
    score: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, COLUMNS // 2, 16])
    result: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, WIDTH // 2, 16])
    line: gl.constexpr = gl.SliceLayout(1, score)
    wide_line: gl.constexpr = gl.SliceLayout(1, result)
    tile, part, sequence = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    share = gl.cdiv(gl.cdiv(keys, SPLITS), COLUMNS) * COLUMNS
    start = part * share
    end = gl.minimum(start + share, keys)

    q = gl.allocate_shared_memory(kind, [1, ROWS, WIDTH], q_desc.layout)
    q_rope = gl.allocate_shared_memory(kind, [1, ROWS, ROPE], q_rope_desc.layout)
    latent = gl.allocate_shared_memory(kind, [STAGES, 1, COLUMNS, WIDTH], latent_desc.layout)
    rope = gl.allocate_shared_memory(kind, [STAGES, 1, COLUMNS, ROPE], rope_desc.layout)
    flat: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], kind)
    weights = gl.allocate_shared_memory(kind, [ROWS, COLUMNS], flat)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES + 1):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    q_ready = ready.index(STAGES)
    mbarrier.expect(q_ready, q_desc.block_type.nbytes + q_rope_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [sequence, tile * ROWS, 0], q_ready, q)
    tma.async_copy_global_to_shared(q_rope_desc, [sequence, tile * ROWS, 0], q_ready, q_rope)
    for i in gl.static_range(STAGES):
        _bring(latent_desc, rope_desc, latent, rope, ready, sequence, start, end, i)

    acc = gl.zeros([ROWS, WIDTH], gl.float32, result)
    sums = gl.zeros([ROWS, COLUMNS], gl.float32, score)  # per column of the tiles
    top = gl.full([ROWS], -1e30, gl.float32, line)  # finite: a part may contain no key
    mbarrier.wait(q_ready, 0)
    for i in range(gl.cdiv(gl.maximum(end - start, 0), COLUMNS)):
        at = i % STAGES
        mbarrier.wait(ready.index(at), (i // STAGES) & 1)
        c = latent.index(at).reshape([COLUMNS, WIDTH])
        r = rope.index(at).reshape([COLUMNS, ROPE])
        s = gl.zeros([ROWS, COLUMNS], gl.float32, score)
        s = warpgroup_mma(
            q_rope.reshape([ROWS, ROPE]), r.permute((1, 0)), s, use_acc=False, is_async=True
        )
        s = warpgroup_mma(q.reshape([ROWS, WIDTH]), c.permute((1, 0)), s, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s])
        key = start + i * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, score))
        s = gl.where((key < end)[None, :], s * scale, float("-inf"))
        newest = gl.maximum(top, gl.max(s, 1))
        p = gl.exp2(s - newest[:, None])
        fade = gl.exp2(top - newest)
        sums = sums * fade[:, None] + p
        top = newest
        weights.store(p.to(kind))
        fence_async_shared()
        acc = acc * gl.convert_layout(fade, wide_line)[:, None]
        acc = warpgroup_mma(weights, c, acc)
        _bring(latent_desc, rope_desc, latent, rope, ready, sequence, start, end, i + STAGES)
    total = gl.maximum(gl.sum(sums, 1), 1e-30)
    acc = acc / gl.convert_layout(total, wide_line)[:, None]
    row = tile * ROWS + gl.arange(0, ROWS, layout=wide_line)
    slot = (sequence * heads + row) * SPLITS + part
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, result))
    gl.store(out_ptr + slot[:, None] * WIDTH + column[None, :], acc, (row < heads)[:, None])
    row = tile * ROWS + gl.arange(0, ROWS, layout=line)
    slot = (sequence * heads + row) * SPLITS + part
    gl.store(lse_ptr + slot, top + gl.log2(total), row < heads)


def absorbed(
    q: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, *, scale: float, **_: Any
) -> Tensor:
    """Decodes with latent keys.

    `q [b, h, 1, c]`, `q_rope [b, h, 1, r]`, `latent [b, t, c]`, `k_rope [b, t, r]`, all dense.
    """
    batch, heads, width = q.shape[0], q.shape[1], q.shape[-1]
    keys = k_rope.shape[1]
    made = torch.empty_like(q)
    if not made.numel():
        return made
    tiles: int = -(-heads // HEADS)
    most = max(1, min(processors(q.device) // (batch * tiles), keys // LEAST, 64))
    splits = 1 << (most.bit_length() - 1)
    outs = torch.empty(batch * heads, splits, width, dtype=torch.float32, device=q.device)
    lses = torch.empty(batch * heads, splits, dtype=torch.float32, device=q.device)
    queries = (x.view(batch, heads, -1) for x in (q, q_rope))
    launch: Any = split_kernel[(tiles, splits, batch)]
    launch(
        *(tiles_of(x, HEADS) for x in queries), *(tiles_of(x, COLUMNS) for x in (latent, k_rope)),
        outs, lses, scale * math.log2(math.e), heads, keys, splits, STAGES, num_warps=8,
    )  # fmt: skip
    launch = merge_kernel[(batch * heads,)]
    launch(outs, lses, made, splits, width, num_warps=4)
    return made
