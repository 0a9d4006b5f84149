"""Flash attention backward in Gluon: each matmul is done once, by specialized warps.

A program keeps a tile of keys and values and iterates over the queries that see them. Each of two
warp groups has 64 keys, as rows, so that weights and their gradients stay in registers as matmul
operands. For the gradient of the queries, both groups store theirs in shared memory. Each group
then computes half of the features and adds it atomically to a sum in memory, to which programs of
other keys add as well. This takes five matmuls instead of the seven of `flash_backward_triton`, and
sums in any order. `told` is the gradient of the result.
Source: Shah et al., "FlashAttention-3", 2024.
"""

# only Gluon's compiler knows its language:
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from stack.ops.attention.ring_gluon import (
    fill,
    filled,
    lines_of,
    release,
    ring,
    tiles_of,
)

Tensor = torch.Tensor
STAGES = 3


@triton.jit
def prepare_kernel(
    out_ptr, told_ptr, told_lse_ptr, lse_ptr, lines_ptr, sum_ptr, length, WIDTH: tl.constexpr
):
    """Prepares 64 queries of a head for the backward pass.

    Stores their lse in base 2, and D = sum(told * out) - told_lse, where `told` is the gradient of
    the result; zeroes the accumulators of their gradients.
    """
    tile, head, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    row, column = tile * 64 + tl.arange(0, 64), tl.arange(0, WIDTH)
    inside = row < length
    place = (head * length + row)[:, None] * WIDTH + column[None, :]
    out = tl.load(out_ptr + place, inside[:, None], 0.0).to(tl.float32)
    told = tl.load(told_ptr + place, inside[:, None], 0.0).to(tl.float32)
    found = tl.sum(out * told, 1) - tl.load(told_lse_ptr + head * length + row, inside, 0.0)
    # a row past the end gets weights exp2(-inf) = 0
    lse = tl.load(lse_ptr + head * length + row, inside, float("inf"))
    line = lines_ptr + head * 2 * tiles * 64 + row
    tl.store(line, lse * 1.4426950408889634)
    tl.store(line + tiles * 64, found)
    place = (head * tiles * 64 + row)[:, None] * WIDTH + column[None, :]
    tl.store(sum_ptr + place, tl.zeros([64, WIDTH], tl.float32))


@gluon.jit
def _load(
    q_desc, k_desc, v_desc, told_desc, lines_desc, q, k, v, told, lines, tiles, share,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """Load the program's 128 keys and values, then all tiles of 64 queries that see them."""
    group = gl.program_id(1)
    first = gl.program_id(0) * 128
    fill(k, k_desc, [group, first, 0], 0)
    fill(v, v_desc, [group, first, 0], 0)
    step = 0
    for shared in range(share):
        head = group * share + shared
        for tile in range(first // 64 if CAUSAL else 0, tiles):
            fill(q, q_desc, [head, tile * 64, 0], step)
            fill(lines, lines_desc, [head, 0, tile * 64], step)
            fill(told, told_desc, [head, tile * 64, 0], step)
            step += 1


@gluon.jit
def _derive(
    PART: gl.constexpr, sum_ptr, q, k, v, told, lines, ds, ds_ready, length, tiles, share, scale,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """Computes the gradients of half of the program's keys and values (64, by PART).

    Also adds to the gradients of all queries that see the program's keys, for half of the features.
    """
    WIDTH: gl.constexpr = q.tiles.shape[3]
    HALF: gl.constexpr = WIDTH // 2
    kind: gl.constexpr = q.tiles.dtype
    score: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    kept: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    part: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, kept, 2)
    line: gl.constexpr = gl.SliceLayout(0, score)
    group = gl.program_id(1)
    first = gl.program_id(0) * 128
    key = first + PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, score))
    keys = filled(k, 0)
    mine_k = keys.slice(PART * 64, 64, 0)
    half_k = keys.slice(PART * HALF, HALF, 1)
    mine_v = filled(v, 0).slice(PART * 64, 64, 0)
    dk = gl.zeros([64, WIDTH], gl.float32, kept)
    dv = gl.zeros([64, WIDTH], gl.float32, kept)
    none = gl.zeros([64, 64], gl.float32, score)
    none_of_half = gl.zeros([64, HALF], gl.float32, part)
    step = 0
    for shared in range(share):
        head = group * share + shared
        for tile in range(first // 64 if CAUSAL else 0, tiles):
            rows = filled(q, step)
            s = warpgroup_mma(mine_k, rows.permute((1, 0)), none, use_acc=False, is_async=True)
            told_rows = filled(told, step)
            dp = warpgroup_mma(
                mine_v, told_rows.permute((1, 0)), none, use_acc=False, is_async=True
            )
            of_rows = filled(lines, step)
            lse = of_rows.slice(0, 1, 0).load(score)
            s = warpgroup_mma_wait(1, deps=[s])
            p = gl.exp2(s * scale - lse)
            if CAUSAL:
                if tile * 64 < first + 128:  # the diagonal
                    row = tile * 64 + gl.arange(0, 64, line)
                    p = gl.where(key[:, None] <= row[None, :], p, 0.0)
            elif RAGGED:
                p = gl.where((key < length)[:, None], p, 0.0)
            dp = warpgroup_mma_wait(0, deps=[dp])
            dv_new = warpgroup_mma(
                gl.convert_layout(p.to(kind), operand), told_rows, dv, is_async=True
            )
            less = of_rows.slice(1, 1, 0).load(score)
            narrow = (p * (dp - less)).to(kind)
            both = ds.index(step & 1)
            both.slice(PART * 64, 64, 0).store(narrow)
            fence_async_shared()
            mbarrier.arrive(ds_ready)
            # while one group waits for the other, some matmul is in flight: with 128 features the
            # one for dV takes long enough, and the one for dK overlaps the atomic additions
            if WIDTH == 64:
                dk = warpgroup_mma(gl.convert_layout(narrow, operand), rows, dk, is_async=True)
            mbarrier.wait(ds_ready, step & 1)
            dq = warpgroup_mma(
                both.permute((1, 0)), half_k, none_of_half, use_acc=False, is_async=True
            )
            if WIDTH != 64:
                dk = warpgroup_mma(gl.convert_layout(narrow, operand), rows, dk, is_async=True)
            dv = warpgroup_mma_wait(2, deps=[dv_new])
            release(told, step)
            release(lines, step)
            if WIDTH == 64:
                dk = warpgroup_mma_wait(1, deps=[dk])
                release(q, step)
                dq = warpgroup_mma_wait(0, deps=[dq])
            else:
                dq = warpgroup_mma_wait(1, deps=[dq])
            # in register order, so that 16 bytes of one thread are next to those of the next thread
            flat = dq.reshape([4, 2, 8, HALF // 8, 4, 2]).permute((3, 0, 2, 4, 1, 5))
            flat = flat.reshape([64 * HALF])
            place = ((head.to(gl.int64) * tiles + tile) * 2 + PART) * (64 * HALF)
            place += gl.arange(0, 64 * HALF, flat.type.layout)
            gl.atomic_add(sum_ptr + place, flat, sem="relaxed")
            if WIDTH != 64:
                dk = warpgroup_mma_wait(0, deps=[dk])
                release(q, step)
            step += 1
    mbarrier.arrive(ds_ready)
    mbarrier.wait(ds_ready, step & 1)  # the other group no longer reads these keys
    mine_k.store((dk * (scale * 0.6931471805599453)).to(kind))
    mine_v.store(dv.to(kind))
    fence_async_shared()


@gluon.jit(do_not_specialize=["length", "tiles", "share"])
def backward_kernel(
    q_desc, k_desc, v_desc, told_desc, dk_desc, dv_desc, lines_desc, sum_ptr, length, tiles,
    share, scale, CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The backward pass of a tile of 128 keys. `scale` includes the factor log2(e) for exp2."""
    q = ring(q_desc, STAGES, 2)
    told = ring(told_desc, STAGES, 2)
    lines = ring(lines_desc, STAGES, 2)
    k = ring(k_desc, 1, 2)
    v = ring(v_desc, 1, 2)
    flat: gl.constexpr = gl.NVMMASharedLayout.get_default_for([128, 64], q_desc.dtype)
    ds = gl.allocate_shared_memory(q_desc.dtype, [2, 128, 64], flat)
    ds_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ds_ready, count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_derive, (
                0, sum_ptr, q, k, v, told, lines, ds, ds_ready, length, tiles, share, scale,
                CAUSAL, RAGGED,
            )),
            (_derive, (
                1, sum_ptr, q, k, v, told, lines, ds, ds_ready, length, tiles, share, scale,
                CAUSAL, RAGGED,
            )),
            (_load, (
                q_desc, k_desc, v_desc, told_desc, lines_desc, q, k, v, told, lines, tiles, share,
                CAUSAL,
            )),
        ],
        [4, 4],  # warps of the second and third partition
        [240, 24],  # their registers; the first partition gets the rest, 240
    )  # fmt: skip
    place = [gl.program_id(1), gl.program_id(0) * 128, 0]
    tma.async_copy_shared_to_global(dk_desc, place, k.tiles.index(0))
    tma.async_copy_shared_to_global(dv_desc, place, v.tiles.index(0))
    tma.store_wait(0)


@triton.jit
def finish_kernel(sum_ptr, dq_ptr, length, scale, WIDTH: tl.constexpr):
    """Stores the summed gradients of 64 queries as rows of dq, times `scale`.

    The sums are in the order of the registers that they were added from.
    """
    tile, head, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    HALF: tl.constexpr = WIDTH // 2
    row, column = tl.arange(0, 64)[:, None], tl.arange(0, WIDTH)[None, :]
    # column 8 j + 2 c + r of row 16 w + 8 i + l is stored at (j, w, l, c, i, r)
    of_part = column % HALF
    place = (of_part // 8 * 4 + row // 16) * 8 + row % 8
    place = (place * 4 + of_part % 8 // 2) * 4 + row // 8 % 2 * 2 + of_part % 2
    first = (head * tiles + tile) * 64 * WIDTH
    found = tl.load(sum_ptr + first + column // HALF * (64 * HALF) + place) * scale
    rows = tile * 64 + row
    target = dq_ptr + (head * length + rows) * WIDTH + column
    tl.store(target, found.to(dq_ptr.dtype.element_ty), rows < length)


def gradients(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, told: Tensor, told_lse: Tensor,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q [B, H, S, D], k and v [B, G, S, D], dense, in bf16 or f16; D is 64 or 128."""
    batch, heads, length, width = q.shape
    groups = k.shape[1]
    dense = torch.contiguous_format
    dq, dk, dv = (torch.empty_like(x, memory_format=dense) for x in (q, k, v))
    if not q.numel():
        return dq, dk, dv
    told = told.to(q.dtype).contiguous()
    tiles = triton.cdiv(length, 64)
    rows = (batch * heads, tiles * 64)
    lines = torch.empty(rows[0], 2, rows[1], dtype=torch.float32, device=q.device)
    sums = torch.empty(*rows, width, dtype=torch.float32, device=q.device)
    grid = (tiles, batch * heads)
    launch: Any = prepare_kernel[grid]
    launch(out, told, told_lse, lse, lines, sums, length, width)
    scale = 1 / math.sqrt(width)
    launch = backward_kernel[(triton.cdiv(length, 128), batch * groups)]
    launch(
        tiles_of(q, 64), tiles_of(k, 128), tiles_of(v, 128), tiles_of(told, 64), tiles_of(dk, 128),
        tiles_of(dv, 128), lines_of(lines, 64), sums, length, tiles, heads // groups,
        scale * math.log2(math.e), causal, not causal and length % 128 != 0, STAGES,
        num_warps=4,
    )  # fmt: skip
    launch = finish_kernel[grid]
    launch(sums, dq, length, scale, width)
    return dq, dk, dv


def launched(*tensors: Tensor, causal: bool, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The entry point for the operator `attention.with_lse_gradient`."""
    return gradients(*tensors, causal=causal)
