"""tile_gpu: fusion groups to tile kernels whose tiles suit the blocks of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Node
from stack.passes.distribute_gpu import CannotDistribute, distribute_gpu_kernel
from stack.passes.exact_tiling.gemm import tile_gemm
from stack.passes.gpu_loops.stream import WarpStream
from stack.passes.gpu_loops.tile_policy import tile_policy
from stack.passes.tile import CannotTile, Tile, tile_group
from stack.rewrite.log import Log
from stack.schedule import schedules_of, with_schedules
from stack.target import Target, as_gpu


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
    policy = tile_policy(group, as_gpu(target))
    if policy is None:
        return tile_group(group)
    schedule, (down, across) = policy.of(group), (policy.rows, policy.columns)
    width = min(columns or schedule.block("n"), across)
    kernel = tile_gemm(group, width, min(rows or schedule.block("m", 1), down))
    return with_schedules(kernel, schedules_of(group)[:1])
