"""Ring buffers in shared memory, filled by one group of warps and read by others, in Gluon.

A ring is a buffer of several tiles. Each tile has two barriers: `ready` when the copy engine has
filled it, and `free` when all readers are done. Step n of a loop uses tile n % STAGES, and waits
for the barrier's phase with the parity of n // STAGES.
"""

# only Gluon's compiler knows its language:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


class Ring(NamedTuple):
    """The tiles [stages, 1, rows, width] and barriers [stages, 1] of a ring buffer."""

    tiles: Any
    ready: Any
    free: Any


@gluon.jit
def ring(desc, STAGES: gl.constexpr, READERS: gl.constexpr):
    """Allocates a ring of `STAGES` tiles, each of which `READERS` groups of warps read."""
    tiles = gl.allocate_shared_memory(desc.dtype, [STAGES] + desc.block_type.shape, desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=READERS)
    return Ring(tiles, ready, free)


@gluon.jit
def fill(held, desc, place, step):
    """Start loading a tile to its buffer of the ring, once all readers have released the buffer.

    `place`: the coordinates of the tile in `desc`. `step`: number of the tile in the ring's order.
    """
    STAGES: gl.constexpr = held.tiles.shape[0]
    at = step % STAGES
    mbarrier.wait(held.free.index(at), (step // STAGES) & 1 ^ 1)
    mbarrier.expect(held.ready.index(at), desc.block_type.nbytes)
    tma.async_copy_global_to_shared(desc, place, held.ready.index(at), held.tiles.index(at))


@gluon.jit
def filled(held, step):
    """Wait for the tile of a step, and return it as [rows, width]."""
    STAGES: gl.constexpr = held.tiles.shape[0]
    at = step % STAGES
    mbarrier.wait(held.ready.index(at), (step // STAGES) & 1)
    return held.tiles.index(at).reshape([held.tiles.shape[2], held.tiles.shape[3]])


@gluon.jit
def release(held, step):
    """Mark that the calling group of warps has read the tile of a step."""
    mbarrier.arrive(held.free.index(step % held.tiles.shape[0]))


def tiles_of(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """Returns a descriptor of tiles [1, rows, width] of `x [..., length, width]`.

    Elements past an end are read as 0.
    """
    shape = [1, rows, x.shape[-1]]
    kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for(shape, kind)
    return TensorDescriptor.from_tensor(x.contiguous().view(-1, *x.shape[-2:]), shape, layout)


def lines_of(x: torch.Tensor, columns: int) -> TensorDescriptor:
    """Returns a descriptor of tiles [1, lines, columns] of `x [count, lines, length]` in f32."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=3)
    return TensorDescriptor.from_tensor(x, [1, x.shape[1], columns], layout)


@cache
def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


def processors(device: torch.device) -> int:
    """The number of multiprocessors, and of programs that run at once with one on each."""
    return _properties(device).multi_processor_count
