"""Matmul for Hopper, in Gluon: a warp that loads, and two warp groups that multiply.

Computes x weight^T of 16 or 8 bits, optionally with scales per row or per block of 128, or with
rows of x in groups and weights per group. The loading warp keeps tiles in flight through TMA. A
group of four warps has 64 rows of a tile, and signals when it is done with a buffer. A tile of 256
columns is two parts with accumulators of their own.

Tensor cores add 8-bit floats with about 14 bits of mantissa. With block scales, each block's sum is
scaled and added in f32 (DeepSeek-V3, 2024, section 3.3.2), which also fixes the precision. Only one
part of a block at a time is in registers, 64 next to 128 of sums. The second group starts its
matmul when the first has its result, so that one adds while the tensor cores work for the other.
Results are stored while the next tile's operands are loaded. If tiles are few, several programs
share a sum.
"""

from __future__ import annotations

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from stack.ops.gemm.tiles import BLOCK, HALF, Config, config_for, stages_for, stored_for

Tensor = torch.Tensor
SIZE = 2048  # elements that a program adds
# Triton 3.8 renamed the barrier of a program's threads.
barrier: Any = gl.thread_barrier if hasattr(gl, "thread_barrier") else getattr(gl, "barrier")  # noqa: B009


@gluon.jit
def _place(unit, at, sizes, held, BAND: gl.constexpr, GROUPED: gl.constexpr):
    """Returns the position of a tile, the end of its group, its steps of k, and its output offset.

    `at`: a group, with its first tile and row. Rows after the last group form one more group, whose
    sums are 0. Bands of BAND rows of tiles share data in the L2 cache.
    """
    rows, columns, depth, splits, groups, sizes_ptr = sizes
    ROWS: gl.constexpr = 2 * held[0].shape[1]
    COLUMNS: gl.constexpr = held[1].shape[1]
    wide = gl.cdiv(columns, COLUMNS)
    steps = gl.cdiv(depth, held[1].shape[2])
    tile, split = unit // splits, unit % splits
    group, before, start = at
    high = rows
    if GROUPED:
        high = gl.load(sizes_ptr + group, group < groups, rows - start)
        while (tile >= before + gl.cdiv(high, ROWS) * wide) & (group <= groups):
            before += gl.cdiv(high, ROWS) * wide
            start += high
            group += 1
            high = gl.load(sizes_ptr + group, group < groups, rows - start)
        tile -= before
        steps = gl.where(group < groups, steps, 0)
    down = gl.cdiv(high, ROWS)
    first = tile // (BAND * wide) * BAND
    band = gl.maximum(gl.minimum(down - first, BAND), 1)
    inside = tile % (BAND * wide)
    each = gl.cdiv(steps, splits)
    begin = split * each
    end = gl.minimum(begin + each, steps)
    row, column = start + (first + inside % band) * ROWS, inside // band * COLUMNS
    last = gl.minimum(start + high, rows)
    return (group, before, start), row, column, last, begin, end, split * down * ROWS


@gluon.jit
def _load(held, x_desc, w_desc, sizes, units, BAND: gl.constexpr, GROUPED: gl.constexpr):
    """Load the operands of each step of each tile of this program, in order."""
    x_slots, w_slots, ready, free, lead = held
    STAGES: gl.constexpr = w_slots.shape[0]
    HALF: gl.constexpr = x_slots.shape[1]
    COLUMNS: gl.constexpr = w_slots.shape[1]
    DEPTH: gl.constexpr = w_slots.shape[2]
    BYTES: gl.constexpr = (2 * HALF + COLUMNS) * DEPTH * w_slots.dtype.primitive_bitwidth // 8
    count = 0
    at = (0, 0, 0)
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):  # pyright: ignore
        placed = _place(unit, at, sizes, held, BAND, GROUPED)  # pyright: ignore
        at, row, column, _, begin, end, _ = placed
        w_row = at[0] * sizes[1] + column
        for step in range(begin, end):
            slot = count % STAGES  # pyright: ignore
            here, inner = ready.index(slot), step * DEPTH
            mbarrier.wait(free.index(slot), count // STAGES & 1 ^ 1)
            mbarrier.expect(here, BYTES)  # pyright: ignore
            for half in gl.static_range(2):  # pyright: ignore
                to = x_slots.index(2 * slot + half)
                tma.async_copy_global_to_shared(x_desc, [row + half * HALF, inner], here, to)
            tma.async_copy_global_to_shared(w_desc, [w_row, inner], here, w_slots.index(slot))
            count += 1


@gluon.jit
def _plus(sums, part, scale):
    """Computes `sums + part scale` before the next matmul, which reuses the registers of `part`."""
    scale, _ = gl.broadcast(scale[:, None], part)
    return gl.inline_asm_elementwise(
        "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [part, scale, sums], gl.float32, False, 1
    )


@gluon.jit
def _waited(made, PENDING: gl.constexpr):
    """Waits until at most PENDING matmuls are in flight, and returns the accumulators."""
    done = warpgroup_mma_wait(PENDING, made)  # pyright: ignore
    if len(made) == 1:
        done = (done,)
    return done


@gluon.jit
def _multiply(
    held, result, scales, sizes, units, WHICH: gl.constexpr, BAND: gl.constexpr,
    GROUPED: gl.constexpr, SCALES: gl.constexpr,
):  # fmt: skip
    """Computes the first or the second half of the rows of each tile of this program."""
    x_slots, w_slots, ready, free, lead = held
    y_desc, y_ptr, out = result
    x_scale_ptr, w_scale_ptr = scales
    rows, columns, depth, _, groups, _ = sizes
    STAGES: gl.constexpr = w_slots.shape[0]
    HALF: gl.constexpr = x_slots.shape[1]
    COLUMNS: gl.constexpr = w_slots.shape[1]
    DEPTH: gl.constexpr = w_slots.shape[2]
    PART: gl.constexpr = min(COLUMNS, 128)
    PARTS: gl.constexpr = COLUMNS // PART
    STORED: gl.constexpr = out.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout(  # pyright: ignore
        [3, 0],
        [4, 1],
        [16, PART, 256 // x_slots.dtype.primitive_bitwidth],  # pyright: ignore
    )
    along: gl.constexpr = gl.SliceLayout(1, layout)  # pyright: ignore
    across: gl.constexpr = gl.SliceLayout(0, layout)  # pyright: ignore
    is_integer: gl.constexpr = x_slots.dtype == gl.int8
    none = gl.zeros([HALF, PART], gl.int32 if is_integer else gl.float32, layout)  # pyright: ignore
    never = rows < 0
    blocks = gl.cdiv(depth, DEPTH)
    count = 0
    at = (0, 0, 0)
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):  # pyright: ignore
        placed = _place(unit, at, sizes, held, BAND, GROUPED)  # pyright: ignore
        at, at_row, at_column, last, begin, end, above = placed
        first = at_row + WHICH * HALF
        row = first + gl.arange(0, HALF, along)
        sums = (none,) * PARTS
        busy = gl.where(first < last, begin, end)  # half a tile may be out of bounds
        for _step in range(begin, busy):
            mbarrier.wait(ready.index(count % STAGES), count // STAGES & 1)  # pyright: ignore
            mbarrier.arrive(free.index(count % STAGES), count=1)  # pyright: ignore
            count += 1
        begin = busy
        if SCALES == "blocks":
            product = none
            for step in range(begin, end):
                slot = count % STAGES  # pyright: ignore
                left = gl.load(x_scale_ptr + row * blocks + step, row < rows, 0.0)
                mbarrier.wait(ready.index(slot), count // STAGES & 1)
                if WHICH == 1:
                    mbarrier.wait(lead.index(slot), count // STAGES & 1)
                x, w = x_slots.index(2 * slot + WHICH), w_slots.index(slot)
                for i in gl.static_range(PARTS):  # pyright: ignore
                    square = gl.minimum(at_column + i * PART, columns - 1) // 128
                    right = gl.load(w_scale_ptr + square * blocks + step)
                    own = w.slice(i * PART, PART).permute([1, 0])
                    product = warpgroup_mma(x, own, product, use_acc=never, is_async=True)
                    product = warpgroup_mma_wait(0, [product])
                    if WHICH == 0 and i == 0:
                        mbarrier.arrive(lead.index(slot), count=1)
                    if i == PARTS - 1:
                        barrier()
                        mbarrier.arrive(free.index(slot), count=1)
                    added = _plus(sums[0], product, left * right)  # pyright: ignore
                    sums = sums[1:] + (added,)
                count += 1
        else:
            for step in range(begin, end):
                slot = count % STAGES  # pyright: ignore
                mbarrier.wait(ready.index(slot), count // STAGES & 1)
                x, w = x_slots.index(2 * slot + WHICH), w_slots.index(slot)
                made = ()
                for i in gl.static_range(PARTS):  # pyright: ignore
                    own = w.slice(i * PART, PART).permute([1, 0])
                    made = made + (warpgroup_mma(x, own, sums[i], is_async=True),)
                sums = _waited(made, PARTS)  # pyright: ignore
                barrier()
                before = free.index((count + STAGES - 1) % STAGES)
                mbarrier.arrive(before, count=1, pred=step > begin)
                count += 1
            sums = _waited(sums, 0)  # pyright: ignore
            barrier()
            mbarrier.arrive(free.index((count + STAGES - 1) % STAGES), count=1, pred=end > begin)
        for i in gl.static_range(PARTS):  # pyright: ignore
            part = sums[i]
            column = at_column + i * PART + gl.arange(0, PART, across)
            if SCALES == "rows":
                is_own = (column < columns) & (at[0] < groups)
                left = gl.load(x_scale_ptr + row, row < last, 0.0)
                right = gl.load(w_scale_ptr + at[0] * columns + column, is_own, 0.0)
                part = part.to(gl.float32) * left[:, None] * right.to(gl.float32)[None, :]
            if GROUPED and first + HALF > last:  # the rows below belong to another group
                to = y_ptr + row[:, None].to(gl.int64) * columns + column[None, :]
                is_inside = (row < last)[:, None] & (column < columns)[None, :]
                gl.store(to, part.to(y_desc.dtype), is_inside)
            elif first < last:
                own = (part,)
                if STORED < PART:
                    own = part.reshape([HALF, 2, STORED]).permute([0, 2, 1]).split()
                for j in gl.static_range(PART // STORED):  # pyright: ignore
                    to_column = at_column + i * PART + j * STORED
                    _store(y_desc, out.index(WHICH), own[j], above + first, to_column)
    tma.store_wait(0)


@gluon.jit
def _store(y_desc, out, sums, row, column):
    """Starts an asynchronous store of a tile of results through the shared memory `out`, after the
    previous store has read it."""
    tma.store_wait(0)
    barrier()
    out.store(sums.to(y_desc.dtype))
    fence_async_shared()
    barrier()
    tma.async_copy_shared_to_global(y_desc, [row, column], out)


@gluon.jit(do_not_specialize=["rows", "splits", "groups"])
def product_kernel(
    x_desc, w_desc, y_desc, y_ptr, x_scale_ptr, w_scale_ptr, sizes_ptr, rows, columns, depth,
    splits, groups, STAGES: gl.constexpr, BAND: gl.constexpr, GROUPED: gl.constexpr,
    SCALES: gl.constexpr,
):  # fmt: skip
    """Computes tiles, or parts of their sums, with a stride of the number of programs.

    Scales are per "rows": `[rows]`, `[groups, columns]`; per "blocks": `[rows, k / 128]`,
    `[columns / 128, k / 128]`; or "none".
    """
    HALF: gl.constexpr = x_desc.block_type.shape[0]
    COLUMNS: gl.constexpr = w_desc.block_type.shape[0]
    DEPTH: gl.constexpr = w_desc.block_type.shape[1]
    x_slots = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES, HALF, DEPTH], x_desc.layout)
    w_slots = gl.allocate_shared_memory(w_desc.dtype, [STAGES, COLUMNS, DEPTH], w_desc.layout)
    out = gl.allocate_shared_memory(y_desc.dtype, [2] + y_desc.block_type.shape, y_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    lead = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):  # pyright: ignore
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
        mbarrier.init(lead.index(i), count=1)
    fence_async_shared()
    barrier()
    held = (x_slots, w_slots, ready, free, lead)
    result = (y_desc, y_ptr, out)
    scales = (x_scale_ptr, w_scale_ptr)
    sizes = (rows, columns, depth, splits, groups, sizes_ptr)
    down = gl.cdiv(rows, 2 * HALF)
    if GROUPED:
        down += groups  # each group may have one partial tile
    units = down * gl.cdiv(columns, COLUMNS) * splits
    gl.warp_specialize(
        [
            (_multiply, (held, result, scales, sizes, units, 0, BAND, GROUPED, SCALES)),
            (_multiply, (held, result, scales, sizes, units, 1, BAND, GROUPED, SCALES)),
            (_load, (held, x_desc, w_desc, sizes, units, BAND, GROUPED)),
        ],
        [4, 1],
        [240, 24],
    )


@triton.jit
def sum_kernel(parts_ptr, y_ptr, count, stride, splits, SIZE: tl.constexpr):
    """Adds `splits` partial results in f32, in order, and stores the sum; they are `stride`
    elements apart."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    sums = tl.zeros([SIZE], tl.float32)
    for i in range(splits):
        sums += tl.load(parts_ptr + i * stride + at, at < count, 0.0)
    tl.store(y_ptr + at, sums.to(y_ptr.dtype.element_ty), at < count)


def product(
    x: Tensor, weight: Tensor, out: torch.dtype, scales: tuple[Tensor, Tensor] | None = None,
    sizes: Tensor | None = None, config: Config | None = None,
) -> Tensor:  # fmt: skip
    """Returns x weight^T `[rows, columns]`, summed in f32, or in int32 for integers.

    Args:
        x: [rows, k], 16-bit, int8 or E4M3; all operands are dense, rows are multiples of 16 bytes.
        weight: [columns, k] of the same type, or [groups, columns, k] with `sizes`.
        out: element type of the result.
        scales: in f32, per row, `[rows]` and `[columns]` or `[groups, columns]`; without groups
            also per block, `[rows, k / 128]` and `[columns / 128, k / 128]`.
        sizes: [groups] int32, rows of each group, in order; results of further rows are 0.
    """
    (rows, depth), columns = x.shape, weight.shape[-2]
    groups = 1 if sizes is None else len(sizes)
    y = torch.empty((rows, columns), dtype=out, device=x.device)
    if not y.numel():
        return y
    width = depth * x.element_size()
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    cut = config or config_for(rows, columns, width, out.itemsize, processors, groups)
    down = -(-rows // (2 * HALF))
    made = y
    if cut.splits > 1:
        above = cut.splits * down * 2 * HALF
        made = torch.empty((above, columns), dtype=torch.float32, device=x.device)
    operands = [
        _described(x, HALF, BLOCK // x.element_size()),
        _described(weight.view(-1, depth), cut.columns, BLOCK // x.element_size()),
        _described(made, HALF, stored_for(cut.columns, made.element_size())),
    ]
    kind = "none"
    if scales is not None:
        kind = "blocks" if sizes is None and scales[1].ndim == 2 else "rows"
    units = (down + (sizes is not None) * groups) * -(-columns // cut.columns) * cut.splits
    launch: Any = product_kernel[(min(processors, units),)]  # pyright: ignore
    launch(
        *operands, made, *(scales or (made, made)), made if sizes is None else sizes,
        rows, columns, depth, cut.splits, groups,
        stages_for(cut.columns, made.element_size()), cut.band, sizes is not None, kind,
        num_warps=4,
    )  # fmt: skip
    if cut.splits > 1:
        add: Any = sum_kernel[(-(-y.numel() // SIZE),)]
        add(made, y, y.numel(), down * 2 * HALF * columns, cut.splits, SIZE, num_warps=8)
    return y


def _described(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Returns the TMA descriptor by which a kernel loads or stores tiles of `rows` x `columns` of a
    matrix."""
    layout = gl.NVMMASharedLayout(128, 8 * tensor.element_size(), 2)
    return TensorDescriptor.from_tensor(tensor, [rows, columns], layout)
