"""Products of 8-bit codes, in Gluon: a warp that loads, two groups of four warps that multiply.

The loader keeps some pairs of tiles under way through the tensor memory accelerator; a group has 64
rows of a tile and tells the loader which pair it is done with. Tensor cores add 8-bit floats with
about 14 bits of mantissa; where blocks have scales, the sum of a block is scaled and added in f32
(DeepSeek-V3, 2024, section 3.3.2), which also mends that. A tile of 256 columns is two parts, each
with sums of its own, so that the block of one part at a time is in registers, 64 of them beside 128
of sums. While one group adds, tensor cores have the products of the other; results leave while the
next tile's operands come. Where tiles are fewer than processors, several share the sum of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
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

Tensor = torch.Tensor
BLOCK = 128
SIZE = 2048  # elements that a program sums
HALF = 64  # rows of a group of four warps
SHARED = 232448 - 1024  # bytes that a program may have, but for barriers


@dataclass(frozen=True)
class Config:
    """Tiles of 128 rows x `columns`, in bands of `group` tiles; `splits` programs share a sum."""

    columns: int
    splits: int = 1
    group: int = 8


@gluon.jit
def _place(unit, sizes, held, GROUP: gl.constexpr):
    """Where a tile begins, which steps of k are its own, and above which row its results stand.

    Bands of GROUP rows of tiles share what they read in the L2 cache.
    """
    rows, columns, depth, splits = sizes
    ROWS: gl.constexpr = 2 * held[0].shape[1]
    COLUMNS: gl.constexpr = held[1].shape[1]
    down, wide = gl.cdiv(rows, ROWS), gl.cdiv(columns, COLUMNS)
    tile, split = unit // splits, unit % splits
    first = tile // (GROUP * wide) * GROUP
    high = gl.minimum(down - first, GROUP)
    inside = tile % (GROUP * wide)
    steps = gl.cdiv(depth, held[1].shape[2])
    each = gl.cdiv(steps, splits)
    begin = split * each
    end = gl.minimum(begin + each, steps)
    row, column = (first + inside % high) * ROWS, inside // high * COLUMNS
    return row, column, begin, end, split * down * ROWS


@gluon.jit
def _load(held, x_desc, w_desc, sizes, units, GROUP: gl.constexpr):
    """All tiles of operands that this program needs, in order."""
    x_slots, w_slots, ready, free = held
    STAGES: gl.constexpr = w_slots.shape[0]
    HALF: gl.constexpr = x_slots.shape[1]
    COLUMNS: gl.constexpr = w_slots.shape[1]
    DEPTH: gl.constexpr = w_slots.shape[2]
    count = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):  # pyright: ignore
        row, column, begin, end, _ = _place(unit, sizes, held, GROUP)  # pyright: ignore
        for step in range(begin, end):
            slot = count % STAGES  # pyright: ignore
            here, at = ready.index(slot), step * DEPTH
            mbarrier.wait(free.index(slot), count // STAGES & 1 ^ 1)
            mbarrier.expect(here, (2 * HALF + COLUMNS) * DEPTH)
            for half in gl.static_range(2):  # pyright: ignore
                to = x_slots.index(2 * slot + half)
                tma.async_copy_global_to_shared(x_desc, [row + half * HALF, at], here, to)
            tma.async_copy_global_to_shared(w_desc, [column, at], here, w_slots.index(slot))
            count += 1


@gluon.jit
def _plus(sums, part, scale):
    """`sums + part scale`, before the next product: that has the registers of this one."""
    scale, _ = gl.broadcast(scale[:, None], part)
    return gl.inline_asm_elementwise(
        "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [part, scale, sums], gl.float32, False, 1
    )


@gluon.jit
def _waited(made, PENDING: gl.constexpr):
    """Sums of products of which at most PENDING are still under way."""
    done = warpgroup_mma_wait(PENDING, made)  # pyright: ignore
    if len(made) == 1:
        done = (done,)
    return done


@gluon.jit
def _multiply(
    held, y_desc, out, scales, sizes, units, WHICH: gl.constexpr, GROUP: gl.constexpr,
    BLOCKED: gl.constexpr,
):  # fmt: skip
    """Rows of a tile, the first half of them or the second, of each tile of this program."""
    x_slots, w_slots, ready, free = held
    x_scale_ptr, w_scale_ptr = scales
    rows, columns, depth, _ = sizes
    STAGES: gl.constexpr = w_slots.shape[0]
    HALF: gl.constexpr = x_slots.shape[1]
    COLUMNS: gl.constexpr = w_slots.shape[1]
    DEPTH: gl.constexpr = w_slots.shape[2]
    PART: gl.constexpr = out.shape[1]
    PARTS: gl.constexpr = COLUMNS // PART
    layout: gl.constexpr = gl.NVMMADistributedLayout(  # pyright: ignore
        [3, 0],
        [4, 1],
        [16, PART, 32],  # pyright: ignore
    )
    along: gl.constexpr = gl.SliceLayout(1, layout)  # pyright: ignore
    across: gl.constexpr = gl.SliceLayout(0, layout)  # pyright: ignore
    is_integer: gl.constexpr = x_slots.dtype == gl.int8
    none = gl.zeros([HALF, PART], gl.int32 if is_integer else gl.float32, layout)  # pyright: ignore
    never = rows < 0
    blocks = gl.cdiv(depth, DEPTH)
    count = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):  # pyright: ignore
        at_row, at_column, begin, end, above = _place(unit, sizes, held, GROUP)  # pyright: ignore
        row = at_row + WHICH * HALF + gl.arange(0, HALF, along)
        sums = (none,) * PARTS
        if BLOCKED:
            product = none
            for step in range(begin, end):
                slot = count % STAGES
                left = gl.load(x_scale_ptr + row * blocks + step, row < rows, 0.0)
                mbarrier.wait(ready.index(slot), count // STAGES & 1)
                x, w = x_slots.index(2 * slot + WHICH), w_slots.index(slot)
                for i in gl.static_range(PARTS):  # pyright: ignore
                    square = gl.minimum(at_column + i * PART, columns - 1) // 128
                    right = gl.load(w_scale_ptr + square * blocks + step)
                    own = w.slice(i * PART, PART).permute([1, 0])
                    product = warpgroup_mma(x, own, product, use_acc=never, is_async=True)
                    product = warpgroup_mma_wait(0, [product])
                    if i == PARTS - 1:
                        gl.thread_barrier()
                        mbarrier.arrive(free.index(slot), count=1)
                    sums = sums[1:] + (_plus(sums[0], product, left * right),)
                count += 1
        else:
            for step in range(begin, end):
                slot = count % STAGES
                mbarrier.wait(ready.index(slot), count // STAGES & 1)
                x, w = x_slots.index(2 * slot + WHICH), w_slots.index(slot)
                made = ()
                for i in gl.static_range(PARTS):  # pyright: ignore
                    own = w.slice(i * PART, PART).permute([1, 0])
                    made = made + (warpgroup_mma(x, own, sums[i], is_async=True),)
                sums = _waited(made, PARTS)  # the products before these are done
                gl.thread_barrier()
                before = free.index((count + STAGES - 1) % STAGES)
                mbarrier.arrive(before, count=1, pred=step > begin)
                count += 1
            sums = _waited(sums, 0)
            gl.thread_barrier()
            mbarrier.arrive(free.index((count + STAGES - 1) % STAGES), count=1, pred=end > begin)
        for i in gl.static_range(PARTS):  # pyright: ignore
            part = sums[i]
            if not BLOCKED:
                column = at_column + i * PART + gl.arange(0, PART, across)
                left = gl.load(x_scale_ptr + row, row < rows, 0.0)
                right = gl.load(w_scale_ptr + column, column < columns, 0.0).to(gl.float32)
                part = part.to(gl.float32) * left[:, None] * right[None, :]
            _store(y_desc, out, part, above + at_row + WHICH * HALF, at_column + i * PART)
    tma.store_wait(0)


@gluon.jit
def _store(y_desc, out, sums, row, column):
    """Through shared memory, which the store before this one has left."""
    tma.store_wait(0)
    gl.thread_barrier()
    out.store(sums.to(y_desc.dtype))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(y_desc, [row, column], out)


@gluon.jit
def gemm8_kernel(
    x_desc, w_desc, y_desc, x_scale_ptr, w_scale_ptr, rows, columns, depth, splits,
    STAGES: gl.constexpr, GROUP: gl.constexpr, BLOCKED: gl.constexpr,
):  # fmt: skip
    """Tiles, or parts of their sums, as far apart as there are programs.

    Scales of blocks: `[rows, blocks]`, `[columns / 128, blocks]`; others `[rows]`, `[columns]`.
    """
    HALF: gl.constexpr = x_desc.block_type.shape[0]
    COLUMNS: gl.constexpr = w_desc.block_type.shape[0]
    DEPTH: gl.constexpr = w_desc.block_type.shape[1]
    x_slots = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES, HALF, DEPTH], x_desc.layout)
    w_slots = gl.allocate_shared_memory(w_desc.dtype, [STAGES, COLUMNS, DEPTH], w_desc.layout)
    out = gl.allocate_shared_memory(y_desc.dtype, [2] + y_desc.block_type.shape, y_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):  # pyright: ignore
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
    fence_async_shared()
    gl.thread_barrier()
    held = (x_slots, w_slots, ready, free)
    sizes = (rows, columns, depth, splits)
    scales = (x_scale_ptr, w_scale_ptr)
    units = gl.cdiv(rows, 2 * HALF) * gl.cdiv(columns, COLUMNS) * splits
    gl.warp_specialize(
        [
            (_multiply, (held, y_desc, out.index(0), scales, sizes, units, 0, GROUP, BLOCKED)),
            (_multiply, (held, y_desc, out.index(1), scales, sizes, units, 1, GROUP, BLOCKED)),
            (_load, (held, x_desc, w_desc, sizes, units, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )


@triton.jit
def sum_kernel(parts_ptr, y_ptr, count, stride, splits, SIZE: tl.constexpr):
    """Elements of `splits` arrays that stand `stride` apart, in order."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    sums = tl.zeros([SIZE], tl.float32)
    for i in range(splits):
        sums += tl.load(parts_ptr + i * stride + at, at < count, 0.0)
    tl.store(y_ptr + at, sums.to(y_ptr.dtype.element_ty), at < count)


def stages_for(columns: int, size: int) -> int:
    """All that shared memory has beside results of `size` bytes."""
    results = 2 * HALF * min(columns, BLOCK) * size
    return (SHARED - results) // ((2 * HALF + columns) * BLOCK)


CONFIGS = [Config(columns, splits) for splits in range(1, 9) for columns in (256, 128, 64)]
LAUNCH = 128 << 10  # bytes that a processor takes from the L2 cache while a kernel starts


def config_for(rows: int, columns: int, depth: int, size: int, processors: int) -> Config:
    """How the processor with most to do is done first, in bytes that it takes from the L2 cache.

    Memory, where weights come from, has half of that rate. Results have `size` bytes.
    """

    down, steps = -(-rows // (2 * HALF)), -(-depth // BLOCK)
    high = min(rows, 2 * HALF)

    def most(c: Config) -> float:
        units = down * -(-columns // c.columns) * c.splits
        each = -(-steps // c.splits) * (high + c.columns) * BLOCK
        each += high * c.columns * (4 if c.splits > 1 else size)
        own = -(-units // processors) * each
        if c.splits > 1:
            own += LAUNCH + rows * columns * (4 * c.splits + size) // processors
        return max(own, 2 * columns * depth / processors)

    return min(CONFIGS, key=most)


def product(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor,
    format: str = "e4m3", block: int = BLOCK,
    config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """x @ weight.T, times scales of all, of rows or of blocks of 128, by the axes of weight_scale.

    Args:
        x: [..., k], int8 or codes of E4M3, dense as all are; k is a multiple of 16.
        weight: [n, k] of the same; a row of results is whole lines of 16 bytes.
        x_scale: f32, [], [...] or [..., k / 128].
        weight_scale: [], [n] or [n / 128, k / 128].
    """
    (columns, depth), rows = weight.shape, x.numel() // x.shape[-1]
    y = torch.empty((*x.shape[:-1], columns), dtype=out, device=x.device)
    if not y.numel():
        return y
    if not weight_scale.ndim:
        x_scale = x_scale.expand(rows).contiguous()
        weight_scale = weight_scale.expand(columns).contiguous()
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    cut = config or config_for(rows, columns, depth, out.itemsize, processors)
    down = -(-rows // (2 * HALF))
    made = y.view(rows, columns)
    if cut.splits > 1:
        above = cut.splits * down * 2 * HALF
        made = torch.empty((above, columns), dtype=torch.float32, device=x.device)
    codes = torch.int8 if x.dtype is torch.int8 else torch.float8_e4m3fn
    layout = gl.NVMMASharedLayout(128, 8, 2)
    operands = [
        TensorDescriptor.from_tensor(t.view(codes).view(-1, depth), [size, BLOCK], layout)
        for t, size in ((x, HALF), (weight, cut.columns))
    ]
    stored = gl.NVMMASharedLayout(128, 8 * made.element_size(), 2)
    part = min(cut.columns, BLOCK)
    operands.append(TensorDescriptor.from_tensor(made, [HALF, part], stored))
    units = down * -(-columns // cut.columns) * cut.splits
    launch: Any = gemm8_kernel[(min(processors, units),)]  # pyright: ignore
    launch(
        *operands, x_scale, weight_scale, rows, columns, depth, cut.splits,
        stages_for(cut.columns, made.element_size()), cut.group, weight_scale.ndim == 2,
        num_warps=4,
    )  # fmt: skip
    if cut.splits > 1:
        add: Any = sum_kernel[(-(-y.numel() // SIZE),)]
        add(made, y, y.numel(), down * 2 * HALF * columns, cut.splits, SIZE, num_warps=8)
    return y
