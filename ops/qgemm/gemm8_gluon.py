"""Products of 8-bit codes with many rows, in Gluon: a warp that loads, two groups that multiply.

The loader keeps `stages` pairs of tiles under way through the tensor memory accelerator; four warps
each have 64 rows of a tile and tell it which pair they are done with. Tensor cores add 8-bit floats
with about 14 bits of mantissa; where blocks have scales, a block's sum is scaled and added in f32
(DeepSeek-V3, 2024, section 3.3.2), which also mends that. While one group of warps adds, tensor
cores have the products of the other; results leave while the next tile's operands come.

What limits it: bytes from the L2 cache, and power. For 128 of k a tile of 128 x 128 takes 32 KiB
and 512 cycles of tensor cores, 64 bytes a cycle; one of 128 x 256 takes 48 bytes a cycle, but with
scales of blocks its sums would need all registers twice. Seen on an H200 beside torch._scaled_mm:
scales of rows 1.09x and 1.06x at 4096^3 and 8192^3, of blocks 0.91x and 0.97x; starting the next
block's product before sums are added was slower (0.77x), as were stores that pass shared memory by.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

Tensor = torch.Tensor
BLOCK = 128
HALF = 64  # rows of a group of four warps


SHARED = 232448 - 1024  # bytes that a program may have, but for barriers


@dataclass(frozen=True)
class Config:
    """Tiles of 128 rows x `columns`, `stages` of 128 of k under way, in bands of `group` tiles."""

    columns: int
    stages: int
    group: int = 8


@gluon.jit
def _corner(tile, rows, columns, ROWS: gl.constexpr, COLUMNS: gl.constexpr, GROUP: gl.constexpr):
    """Where a tile begins: bands of GROUP rows of tiles share what they read in the L2 cache."""
    down, wide = gl.cdiv(rows, ROWS), gl.cdiv(columns, COLUMNS)
    first = tile // (GROUP * wide) * GROUP
    high = gl.minimum(down - first, GROUP)
    inside = tile % (GROUP * wide)
    return (first + inside % high) * ROWS, inside // high * COLUMNS


@gluon.jit
def _load(held, x_desc, w_desc, sizes, PROGRAMS: gl.constexpr, GROUP: gl.constexpr):
    """All tiles of operands that this program needs, in order."""
    x_slots, w_slots, ready, free = held
    rows, columns, depth = sizes
    STAGES: gl.constexpr = w_slots.shape[0]
    HALF: gl.constexpr = x_slots.shape[1]
    COLUMNS: gl.constexpr = w_slots.shape[1]
    DEPTH: gl.constexpr = w_slots.shape[2]
    tiles = gl.cdiv(rows, 2 * HALF) * gl.cdiv(columns, COLUMNS)
    count = 0
    for tile in range(gl.program_id(0), tiles, PROGRAMS):
        row, column = _corner(tile, rows, columns, 2 * HALF, COLUMNS, GROUP)
        for at in range(0, depth, DEPTH):
            slot = count % STAGES
            here = ready.index(slot)
            mbarrier.wait(free.index(slot), count // STAGES & 1 ^ 1)
            mbarrier.expect(here, (2 * HALF + COLUMNS) * DEPTH)
            tma.async_copy_global_to_shared(x_desc, [row, at], here, x_slots.index(2 * slot))
            tma.async_copy_global_to_shared(
                x_desc, [row + HALF, at], here, x_slots.index(2 * slot + 1)
            )
            tma.async_copy_global_to_shared(w_desc, [column, at], here, w_slots.index(slot))
            count += 1


@gluon.jit
def _multiply(
    held, y_desc, out, scales, sizes, WHICH: gl.constexpr, PROGRAMS: gl.constexpr,
    GROUP: gl.constexpr, BLOCKED: gl.constexpr,
):  # fmt: skip
    """Rows of a tile, the first half of them or the second, of each tile of this program."""
    x_slots, w_slots, ready, free = held
    x_scale_ptr, w_scale_ptr = scales
    rows, columns, depth = sizes
    STAGES: gl.constexpr = w_slots.shape[0]
    HALF: gl.constexpr = x_slots.shape[1]
    COLUMNS: gl.constexpr = w_slots.shape[1]
    DEPTH: gl.constexpr = w_slots.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout(  # pyright: ignore
        [3, 0],
        [4, 1],
        [16, COLUMNS, 32],  # pyright: ignore
    )
    along: gl.constexpr = gl.SliceLayout(1, layout)  # pyright: ignore
    across: gl.constexpr = gl.SliceLayout(0, layout)  # pyright: ignore
    tiles = gl.cdiv(rows, 2 * HALF) * gl.cdiv(columns, COLUMNS)
    steps = gl.cdiv(depth, DEPTH)
    SUM: gl.constexpr = gl.int32 if x_slots.dtype == gl.int8 else gl.float32
    none = gl.zeros([HALF, COLUMNS], SUM, layout)
    count = 0
    for tile in range(gl.program_id(0), tiles, PROGRAMS):
        at_row, at_column = _corner(tile, rows, columns, 2 * HALF, COLUMNS, GROUP)  # pyright: ignore
        row = at_row + WHICH * HALF + gl.arange(0, HALF, along)
        column = at_column + gl.arange(0, COLUMNS, across)
        is_row, is_column = row < rows, column < columns
        sums = none
        if BLOCKED:
            for step in range(steps):
                slot = count % STAGES
                left = gl.load(x_scale_ptr + row * steps + step, is_row, 0.0)
                right = gl.load(w_scale_ptr + at_column // 128 * steps + step)
                mbarrier.wait(ready.index(slot), count // STAGES & 1)
                x, w = x_slots.index(2 * slot + WHICH), w_slots.index(slot).permute([1, 0])
                made = warpgroup_mma(x, w, none, use_acc=False, is_async=True)
                part = warpgroup_mma_wait(0, [made])
                gl.thread_barrier()
                mbarrier.arrive(free.index(slot), count=1)
                sums += part * (left * right)[:, None]
                count += 1
        else:
            for step in range(steps):
                slot = count % STAGES
                mbarrier.wait(ready.index(slot), count // STAGES & 1)
                x, w = x_slots.index(2 * slot + WHICH), w_slots.index(slot).permute([1, 0])
                made = warpgroup_mma(x, w, sums, is_async=True)
                sums = warpgroup_mma_wait(1, [made])  # the one before it is done
                gl.thread_barrier()
                before = (count + STAGES - 1) % STAGES
                mbarrier.arrive(free.index(before), count=1, pred=step > 0)
                count += 1
            sums = warpgroup_mma_wait(0, [sums])
            gl.thread_barrier()
            mbarrier.arrive(free.index((count + STAGES - 1) % STAGES), count=1)
            left = gl.load(x_scale_ptr + row, is_row, 0.0)
            right = gl.load(w_scale_ptr + column, is_column, 0.0).to(gl.float32)
            sums = sums.to(gl.float32) * left[:, None] * right[None, :]
        first = at_row + WHICH * HALF
        if 2 * out.shape[1] == COLUMNS:
            near, far = sums.reshape([HALF, 2, out.shape[1]]).permute([0, 2, 1]).split()
            _store(y_desc, out, near, first, at_column)
            _store(y_desc, out, far, first, at_column + out.shape[1])
        else:
            _store(y_desc, out, sums, first, at_column)
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
    x_desc, w_desc, y_desc, x_scale_ptr, w_scale_ptr, rows, columns, depth,
    STAGES: gl.constexpr, GROUP: gl.constexpr, PROGRAMS: gl.constexpr, BLOCKED: gl.constexpr,
):  # fmt: skip
    """Tiles PROGRAMS apart. Scales as `fp8_triton.fp8_kernel` has them."""
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
    sizes = (rows, columns, depth)
    scales = (x_scale_ptr, w_scale_ptr)
    gl.warp_specialize(
        [
            (_multiply, (held, y_desc, out.index(0), scales, sizes, 0, PROGRAMS, GROUP, BLOCKED)),
            (_multiply, (held, y_desc, out.index(1), scales, sizes, 1, PROGRAMS, GROUP, BLOCKED)),
            (_load, (held, x_desc, w_desc, sizes, PROGRAMS, GROUP)),
        ],
        [4, 1],
        [232, 24],
    )


def config_for(is_narrow: bool, out: torch.dtype) -> Config:
    """The widest tile whose sums fit registers, and all stages that shared memory has."""
    columns = 128 if is_narrow else 256
    results = 2 * HALF * BLOCK * out.itemsize
    return Config(columns, (SHARED - results) // ((2 * HALF + columns) * BLOCK))


def _launched(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, is_blocked: bool,
    config: Config | None, out: torch.dtype,
) -> Tensor:  # fmt: skip
    (columns, depth), rows = weight.shape, x.numel() // x.shape[-1]
    y = torch.empty((*x.shape[:-1], columns), dtype=out, device=x.device)
    if not y.numel():
        return y
    is_integer = x.dtype is torch.int8
    codes = torch.int8 if is_integer else torch.float8_e4m3fn
    cut = config or config_for(is_blocked or is_integer, out)
    layout = gl.NVMMASharedLayout(128, 8, 2)
    operands = [
        TensorDescriptor.from_tensor(t.view(codes).view(-1, depth), [size, BLOCK], layout)
        for t, size in ((x, HALF), (weight, cut.columns))
    ]
    stored = gl.NVMMASharedLayout(128, 8 * y.element_size(), 2)
    operands.append(TensorDescriptor.from_tensor(y.view(rows, columns), [HALF, BLOCK], stored))
    tiles = -(-rows // (2 * HALF)) * -(-columns // cut.columns)
    programs = min(torch.cuda.get_device_properties(x.device).multi_processor_count, tiles)
    launch: Any = gemm8_kernel[(programs,)]  # pyright: ignore
    launch(
        *operands, x_scale, weight_scale, rows, columns, depth,
        cut.stages, cut.group, programs, is_blocked, num_warps=4,
    )  # fmt: skip
    return y


def rows_scaled(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor,
    config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`x [..., k]`, `weight [n, k]` int8 or codes of E4M3; `x_scale [...]`, `weight_scale [n]`."""
    return _launched(x, weight, x_scale, weight_scale, False, config, out)


def fp8_block(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor,
    format: str = "e4m3", block: int = BLOCK,
    config: Config | None = None, out: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """`x [..., k]`, `weight [n, k]` codes of E4M3, scales in f32 for 128 and 128 x 128 of them."""
    return _launched(x, weight, x_scale, weight_scale, True, config, out)


def fp8(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, format: str = "e4m3"
) -> Tensor:
    """`x_scale [...]`, `weight_scale [n]` in f32."""
    return rows_scaled(x, weight, x_scale, weight_scale)


def fp8_tensor(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, format: str = "e4m3"
) -> Tensor:
    """`x_scale []`, `weight_scale []` in f32."""
    rows, columns = x_scale.expand(x.shape[:-1]), weight_scale.expand(len(weight))
    return rows_scaled(x, weight, rows.contiguous(), columns.contiguous())
