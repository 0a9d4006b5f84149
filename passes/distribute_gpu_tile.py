"""tile_gpu: fusion groups to tile kernels whose tiles suit the blocks of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Node
from stack.passes.distribute_gpu import CannotDistribute, distribute_gpu_kernel
from stack.passes.tile import CannotTile, Tile, tile_group
from stack.passes.tile_gemm import tile_gemm


@dataclass(frozen=True)
class TileGpu(Tile):
    """As `tile`, with tiles of a matrix product that a block of threads shares.

    A group that `distribute_gpu` has no schedule for stays as it is, with the reason.

    Attributes:
        rows: rows of a product's tile, at most.
        columns: columns of it, at most.
    """

    name: ClassVar[str] = "tile_gpu"
    rows: int = 128
    columns: int = 128

    def _kernel(self, group: Node) -> Node:
        foreign = {n.op for n in group.blocks[0].nodes}.intersection(self.refuse)
        if foreign:
            raise CannotTile(f"no code for {', '.join(sorted(foreign))}")
        kernel = self._tiled(group)
        try:
            distribute_gpu_kernel(kernel)
        except CannotDistribute as why:
            raise CannotTile(str(why)) from why
        return kernel

    def _tiled(self, group: Node) -> Node:
        dots = [n for n in group.blocks[0].nodes if n.op == "dot"]
        if not dots:
            return tile_group(group)
        return tile_gemm(group, self.columns, self.rows)
