"""Flash attention forward in Gluon, with specialized warps.

One group of four warps loads. Each of the others computes 64 queries; while one group computes
exponentials, the tensor cores run the matmuls of the others. There are two such groups, or three
with heads of 64, whose smaller results leave enough registers. A group issues the matmul for the
scores of its next tile together with the one of this tile's weights and values, and computes
exponentials when both are done. Overlapping them with its own matmuls was slower. There are as many
programs as multiprocessors. Each iterates over tiles of queries, and loads of the next tile start
while the results of this one are computed. The kernel is bound by matmuls, and with heads of 64 by
as many cycles of exponentials.
Source: Shah et al., "FlashAttention-3", 2024.
"""

# only Gluon's compiler knows its language:
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from stack.ops.attention.ring_gluon import (
    fill,
    filled,
    processors,
    release,
    ring,
    tiles_of,
)

Tensor = torch.Tensor
STAGES = {64: 4, 128: 2}  # tiles of keys and of values in shared memory, by head width
LAST_ROUND = 1.0625  # pairs reuse cached keys, but not if the last round idles for longer


@gluon.jit
def _tiles_of_queries(work, tiles, heads, CAUSAL: gl.constexpr, PAIRS: gl.constexpr):
    """Returns the head and the range of query tiles of a work item.

    With PAIRS, the item is a tile and its mirror image: each pair sees the same number of keys.
    Otherwise it is one tile. Causal tiles then start with the longest, and every other round of
    programs runs in reverse, so that a program with more work in one round has less in the next.
    """
    by = 1
    if PAIRS:
        pairs = (tiles + 1) // 2
        head, first = work // pairs, work % pairs
        end = tiles - first
        by = gl.maximum(end - 1 - first, 1)
    elif CAUSAL:
        programs = gl.num_programs(0)
        turn, place = work // programs, work % programs
        at = turn * programs + gl.where(turn % 2 == 0, place, programs - 1 - place)
        head, first = at % heads, tiles - 1 - at // heads
        end = first + (first >= 0).to(gl.int32)  # the last round may be incomplete
    else:
        head, first = work // tiles, work % tiles
        end = first + 1
    return head, first, end, by


@gluon.jit
def _tiles_of_keys(tile, length, ROWS: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr):
    """Returns the number of key tiles that a tile of queries sees: all, or with CAUSAL those that
    do not begin after its last query."""
    return gl.cdiv(gl.minimum((tile + 1) * ROWS, length) if CAUSAL else length, COLUMNS)


@gluon.jit
def _load(
    q_desc, k_desc, v_desc, q, k, v, sizes, share,
    CAUSAL: gl.constexpr, PAIRS: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Load tiles of queries, and for each its keys and values, from the last key to the first."""
    works, tiles, heads, length = sizes
    COLUMNS: gl.constexpr = k_desc.block_type.shape[1]
    step = 0
    turn = 0
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        head, begin, end, by = _tiles_of_queries(work, tiles, heads, CAUSAL, PAIRS)
        for tile in range(begin, end, by):
            for part in gl.static_range(GROUPS):
                fill(q, q_desc, [head, (tile * GROUPS + part) * 64, 0], turn + part)
            turn += GROUPS
            count = _tiles_of_keys(tile, length, GROUPS * 64, COLUMNS, CAUSAL)
            for i in range(count):
                place = [head // share, (count - 1 - i) * COLUMNS, 0]
                fill(k, k_desc, place, step)
                fill(v, v_desc, place, step)
                step += 1


@gluon.jit
def _ask(q, keys):
    """Issues the asynchronous matmul q keys^T, the scores of 64 queries and a tile of 128 keys;
    returns its result, which must be waited for."""
    score: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    none = gl.zeros([64, 128], gl.float32, score)
    return warpgroup_mma(q, keys.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def _sums_of_lanes(p):
    """Sums the weights of each row to eight partial sums, without communication between lanes."""
    return gl.sum(p.reshape([64, p.shape[1] // 8, 8]), 1)


@gluon.jit
def _attend(q, k, v, step, count, first, length, scale, CAUSAL: gl.constexpr):
    """Attention of 64 queries from `first` on: result, sum and maximum over `count` key tiles."""
    WIDTH: gl.constexpr = q.shape[1]
    score: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    out: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out, 2)
    SPARE: gl.constexpr = k.tiles.shape[0] > 2  # enough buffers to release keys and values together
    s = warpgroup_mma_wait(0, deps=[_ask(q, filled(k, step))])
    release(k, step)
    # only the last tile of keys, which is processed first, needs a mask
    column = (count - 1) * 128 + gl.arange(0, 128, gl.SliceLayout(0, score))
    seen = (column < length)[None, :]
    if CAUSAL:
        row = first + gl.arange(0, 64, gl.SliceLayout(1, score))
        seen = seen & (column[None, :] <= row[:, None])
    s = gl.where(seen, s, float("-inf"))
    top = gl.max(s, 1) * scale
    p = gl.exp2(s * scale - top[:, None])
    sums = _sums_of_lanes(p)
    weights = gl.convert_layout(p.to(q.dtype), operand)
    acc = gl.zeros([64, WIDTH], gl.float32, out)
    for _ in range(count - 1):
        keys = filled(k, step + 1)
        values = filled(v, step)
        asked = _ask(q, keys)
        summed = warpgroup_mma(weights, values, acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=[asked])
        if not SPARE:
            release(k, step + 1)
        newest = gl.maximum(top, gl.max(s, 1) * scale)
        p = gl.exp2(s * scale - newest[:, None])
        fade = gl.exp2(top - newest)
        fade_of_lanes = gl.convert_layout(fade, gl.SliceLayout(1, sums.type.layout))
        sums = sums * fade_of_lanes[:, None] + _sums_of_lanes(p)
        top = newest
        acc = warpgroup_mma_wait(0, deps=[summed])
        release(v, step)
        if SPARE:
            release(k, step + 1)
        acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, out))[:, None]
        weights = gl.convert_layout(p.to(q.dtype), operand)
        step += 1
    acc = warpgroup_mma(weights, filled(v, step), acc)
    release(v, step)
    total = gl.convert_layout(gl.sum(sums, 1), top.type.layout)
    return acc / gl.convert_layout(total, gl.SliceLayout(1, out))[:, None], total, top


@gluon.jit
def _attend_all(
    PART: gl.constexpr, o_desc, lse_ptr, q, k, v, sizes, scale,
    CAUSAL: gl.constexpr, PAIRS: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Computes 64 queries, selected by PART, of each query tile of this program."""
    works, tiles, heads, length = sizes
    COLUMNS: gl.constexpr = k.tiles.shape[2]
    step = 0
    turn = PART
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        head, begin, end, by = _tiles_of_queries(work, tiles, heads, CAUSAL, PAIRS)
        for tile in range(begin, end, by):
            first = (tile * GROUPS + PART) * 64
            count = _tiles_of_keys(tile, length, GROUPS * 64, COLUMNS, CAUSAL)
            if CAUSAL:
                # skip keys that other groups see, but not this one
                for _ in range(count - 1 - first // COLUMNS):
                    filled(k, step)
                    release(k, step)
                    filled(v, step)
                    release(v, step)
                    step += 1
                count = gl.minimum(count, first // COLUMNS + 1)
            mine = filled(q, turn)
            out, total, top = _attend(mine, k, v, step, count, first, length, scale, CAUSAL)
            step += count
            # the result is stored through the shared memory of its queries
            mine.store(out.to(o_desc.dtype))
            fence_async_shared()
            room = q.tiles.index(turn % q.tiles.shape[0])
            tma.async_copy_shared_to_global(o_desc, [head, first, 0], room)
            row = first + gl.arange(0, 64, total.type.layout)
            lse = (top + gl.log2(total)) * 0.6931471805599453  # ln(2)
            gl.store(lse_ptr + head.to(gl.int64) * length + row, lse, row < length)
            tma.store_wait(0)
            release(q, turn)
            turn += GROUPS


@gluon.jit(do_not_specialize=["length", "tiles", "works", "heads", "share"])
def attention_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, length, tiles, works, heads, share, scale,
    CAUSAL: gl.constexpr, PAIRS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The forward pass. `scale` includes the factor log2(e) for exp2."""
    q = ring(q_desc, 2 * GROUPS, 1)
    k = ring(k_desc, STAGES, GROUPS)
    v = ring(v_desc, STAGES, GROUPS)
    fence_async_shared()
    sizes = (works, tiles, heads, length)
    # warps of all partitions but the first, and their registers; the first gets the rest
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_attend_all, (0, o_desc, lse_ptr, q, k, v, sizes, scale, CAUSAL, PAIRS, GROUPS)),
                (_attend_all, (1, o_desc, lse_ptr, q, k, v, sizes, scale, CAUSAL, PAIRS, GROUPS)),
                (_load, (q_desc, k_desc, v_desc, q, k, v, sizes, share, CAUSAL, PAIRS, GROUPS)),
            ],
            [4, 4],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_attend_all, (0, o_desc, lse_ptr, q, k, v, sizes, scale, CAUSAL, PAIRS, GROUPS)),
                (_attend_all, (1, o_desc, lse_ptr, q, k, v, sizes, scale, CAUSAL, PAIRS, GROUPS)),
                (_attend_all, (2, o_desc, lse_ptr, q, k, v, sizes, scale, CAUSAL, PAIRS, GROUPS)),
                (_load, (q_desc, k_desc, v_desc, q, k, v, sizes, share, CAUSAL, PAIRS, GROUPS)),
            ],
            [4, 4, 4],
            [160, 160, 24],
        )


def _groups(width: int, length: int, causal: bool) -> int:
    """The number of warp groups that compute: three, if their results leave enough registers.

    For short causal sequences it is two, because most tiles of 192 queries would cross the
    diagonal.
    """
    return 3 if width == 64 and (not causal or length >= 2048) else 2


def attention_with_lse(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns softmax(q k^T / sqrt(D)) v, and the log-sum-exp of scores [B, H, S] in f32.

    Args:
        q: bf16 or f16, [B, H, S, D] with D 64 or 128.
        k, v: [B, G, S, D]; each of the G heads serves H / G heads of q.
    """
    batch, heads, length, width = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    if not out.numel():
        return out, lse
    groups = _groups(width, length, causal)
    tiles = triton.cdiv(length, 64 * groups)
    most = processors(q.device)
    works = tiles * batch * heads
    pairs = triton.cdiv(tiles, 2) * batch * heads
    paired = causal and triton.cdiv(pairs, most) * most <= pairs * LAST_ROUND
    programs = min(pairs if paired else works, most)
    if paired:
        works = pairs
    elif causal:
        works = triton.cdiv(works, programs) * programs
    launch: Any = attention_kernel[(programs,)]
    launch(
        tiles_of(q, 64), tiles_of(k, 128), tiles_of(v, 128), tiles_of(out, 64), lse, length,
        tiles, works, batch * heads, heads // k.shape[1], math.log2(math.e) / math.sqrt(width),
        causal, paired, groups, STAGES[width], num_warps=4,
    )  # fmt: skip
    return out, lse


def launched(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **_: Any) -> Tensor:
    """The entry point for the operator `attention.attention`."""
    return attention_with_lse(q, k, v, causal)[0]


def launched_with_lse(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **_: Any
) -> tuple[Tensor, Tensor]:
    """The entry point for the operator `attention.with_lse`."""
    return attention_with_lse(q, k, v, causal)
