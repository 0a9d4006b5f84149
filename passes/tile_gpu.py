"""tile_gpu: fusion groups to tile kernels whose tiles suit the blocks of a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Node
from stack.ir.types import DType
from stack.passes.distribute_gpu import CannotDistribute, distribute_gpu_kernel
from stack.passes.exact_tiling.gemm import tile_gemm
from stack.passes.gpu_loops.stream import WarpStream
from stack.passes.tile import CannotTile, Tile, tile_group
from stack.passes.tiling.contraction import roles_of
from stack.rewrite.log import Log
from stack.target import Gpu, Target, as_gpu

EDGE_COST = 48  # of a row or column of a tile, in products at one depth
BLOCK_COST = 2000  # of a tile
# of tiles by bits of an element; tensor cores multiply those of 16
SIDES = {16: (16, 32, 64, 128), 32: (32, 64, 128), 64: (32, 64)}


@dataclass(frozen=True)
class TileGpu(Tile):
    """As `tile`, with tiles of a matrix product that a block of threads shares.

    A group that `distribute_gpu` has no schedule for stays as it is, with the reason.

    Attributes:
        rows: rows of a product's tile, at most; 0 picks them.
        columns: columns of it, at most; 0 picks them.
    """

    name: ClassVar[str] = "tile_gpu"
    rows: int = 0
    columns: int = 0

    def _kernel(self, group: Node, log: Log) -> Node:
        foreign = {n.op for b in group.blocks for n in b.nodes}.intersection(self.refuse)
        if foreign:
            raise CannotTile(f"no code for {', '.join(sorted(foreign))}")
        if group.op == "stream":
            return WarpStream(group).kernel()
        kernel = tile_gpu_group(group, self.rows, self.columns, log.gpu)
        try:
            distribute_gpu_kernel(kernel, target=log.gpu)
        except CannotDistribute as why:
            raise CannotTile(str(why)) from why
        return kernel

    def _tell(self, dot: Node, name: str, log: Log) -> None:
        shape = " x ".join(map(str, dot.shape))
        log.note(f"{name}: tiles of {shape}, for {log.gpu.processors} processors")


def tile_gpu_group(
    group: Node, rows: int = 0, columns: int = 0, target: Target | None = None
) -> Node:
    """The kernel node of one fusion group. Raises CannotTile."""
    dots = [n for n in group.blocks[0].nodes if n.op == "dot"]
    if len(dots) != 1:
        return tile_group(group)
    roles = roles_of(dots[0])
    sizes = roles.sizes
    down, across = sizes[roles.row] if roles.row else 1, sizes[roles.lane]
    many = math.prod(sizes[n] for n in (*roles.batch, *roles.panels, *roles.outer))
    picked = pick_tile(down, across, many, dots[0].args[0].dtype, as_gpu(target))
    return tile_gemm(group, min(columns or picked[1], across), min(rows or picked[0], down))


def pick_tile(rows: int, columns: int, many: int, dtype: DType, gpu: Gpu) -> tuple[int, int]:
    """Rows and columns of a tile of a product: the least waves of blocks times the cost of one."""
    sides = SIDES.get(dtype.bits, SIDES[32])

    def cost(tile: tuple[int, int]) -> int:
        down, across = tile
        blocks = many * -(-rows // down) * -(-columns // across)
        one = down * across + EDGE_COST * (down + across) + BLOCK_COST
        return -(-blocks // gpu.processors) * one

    return min(((r, c) for r in sides for c in sides), key=cost)
