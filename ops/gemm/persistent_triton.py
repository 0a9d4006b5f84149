"""Matmul for Hopper, hand-written in Triton: persistent programs with warp specialization.

There are as many programs as multiprocessors, and each computes several tiles. Tiles are loaded and
stored by TMA, so that one tile's stores overlap the next one's loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from stack.errors import UsageError
from stack.ops.tile_config import TileConfig

Tensor = torch.Tensor


@dataclass(frozen=True)
class Config(TileConfig):
    """Tile sizes; `special`: loads have warps of their own."""

    special: bool = True


LARGE = Config(128, 256, 64, 8, 3)
MEDIUM = Config(128, 128, 64, 8, 4)
FLAT = Config(64, 128, 128, 4, 4, special=False)  # few rows: bound by reading the weights


@triton.jit
def matmul_kernel(
    a_desc, b_desc, c_desc, m, n, k, PROGRAMS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, SPECIAL: tl.constexpr,
):  # fmt: skip
    """Computes every `PROGRAMS`-th tile of c = a b^T."""
    down = tl.cdiv(m, ROWS)
    across = tl.cdiv(n, COLUMNS)
    steps = tl.cdiv(k, DEPTH)
    for tile in tl.range(
        tl.program_id(0), down * across, PROGRAMS, flatten=True, warp_specialize=SPECIAL
    ):
        # bands of GROUP rows of tiles share data in the L2 cache
        band = tile // (GROUP * across)
        first = band * GROUP
        high = tl.minimum(down - first, GROUP)
        inside = tile % (GROUP * across)
        row = (first + inside % high) * ROWS
        column = (inside // high) * COLUMNS
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for step in range(steps):
            a = a_desc.load([row, step * DEPTH])
            b = b_desc.load([column, step * DEPTH])
            acc = tl.dot(a, b.T, acc)
        c_desc.store([row, column], acc.to(c_desc.dtype))


def config_for(m: int, n: int, programs: int) -> Config:
    """Picks large tiles if they fill the GPU, else smaller ones."""
    if m <= 64:
        return FLAT
    large = triton.cdiv(m, LARGE.rows) * triton.cdiv(n, LARGE.columns)
    return LARGE if large >= programs else MEDIUM


def matmul(x: Tensor, weight: Tensor, config: Config | None = None) -> Tensor:
    """Returns x weight^T, summed in f32.

    Args:
        x: bf16 or f16, [M, K].
        weight: the same element type, [N, K]. K and N are multiples of 8.

    Raises:
        UsageError: shapes or element types that the kernel does not support.
    """
    (m, k), (n, inner) = x.shape, weight.shape
    small = (torch.float16, torch.bfloat16)
    if k != inner or x.dtype != weight.dtype or x.dtype not in small or k % 8 or n % 8:
        raise UsageError(
            f"{x.dtype} {list(x.shape)} by {weight.dtype} {list(weight.shape)}: takes [M, K] and"
            " [N, K] in f16 or bf16, K and N multiples of 8"
        )
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if not (m and n and k):
        return out.zero_()
    programs = _processors(x.device)
    chosen = config or config_for(m, n, programs)
    operands = [
        TensorDescriptor.from_tensor(x.contiguous(), [chosen.rows, chosen.depth]),
        TensorDescriptor.from_tensor(weight.contiguous(), [chosen.columns, chosen.depth]),
        TensorDescriptor.from_tensor(out, [chosen.rows, chosen.columns]),
    ]
    tiles = triton.cdiv(m, chosen.rows) * triton.cdiv(n, chosen.columns)
    launch: Any = matmul_kernel[(min(programs, tiles),)]
    launch(
        *operands, m, n, k, min(programs, tiles), chosen.rows, chosen.columns, chosen.depth,
        chosen.group, chosen.special, num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    return out


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4  # Triton's interpreter: more than one tile per program
    return torch.cuda.get_device_properties(device).multi_processor_count


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """The matmul in double precision, for comparison."""
    return x.double() @ weight.double().T
