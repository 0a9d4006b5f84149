"""tile_gpu: matrix products to tile kernels whose tiles a block of threads of a GPU shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Node
from stack.ir.traits import contractions, is_contraction
from stack.passes.control import BlockPass
from stack.passes.distribute_gpu import CannotDistribute, distribute_gpu_kernel
from stack.passes.exact_tiling.gemm import tile_gemm
from stack.passes.gpu_loops.tile_policy import tile_policy
from stack.passes.tile import CannotTile, alone, check_code
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.schedule import schedules_of, with_schedules
from stack.target import Gpu, Target, as_gpu


@dataclass(frozen=True)
class TileGpu(BlockPass):
    """Turn groups with one matrix product into kernels that `distribute_gpu` stages.

    Other groups, and products that it has no schedule for, are left to `blocks`.

    Attributes:
        rows: rows of a product's tile, at most; 0 picks them.
        columns: columns of it, at most; 0 picks them.
        refuse: ops that the backend has no code for; their groups stay as they are.
    """

    name: ClassVar[str] = "tile_gpu"
    rows: int = 0
    columns: int = 0
    refuse: tuple[str, ...] = ()

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Replacement] = {}
        for node in block.nodes:
            group = alone(node) if is_contraction(node) else node
            if group.op != "fusion" or group.attrs["kind"] == "library" or not _is_product(group):
                continue
            name, lines = block.names.get(node, node.op), block.locs.get(node, ())
            try:
                kernel = self._kernel(group, log.gpu)
            except CannotTile as why:
                log.note(f"{name} is not staged: {why}", lines)
                if schedules_of(group):  # its tiles were those of a staged product
                    changed[node] = Replacement(with_schedules(group, ()))
                continue
            if log.spend("tile_gpu", lines):
                changed[node] = Replacement(kernel)
        return replace(block, changed) if changed else block

    def _kernel(self, group: Node, gpu: Gpu) -> Node:
        check_code(group, self.refuse)
        kernel = tile_gpu_group(group, self.rows, self.columns, gpu)
        try:
            distribute_gpu_kernel(kernel, target=gpu)
        except CannotDistribute as why:
            raise CannotTile(str(why)) from why
        return kernel


def _is_product(group: Node) -> bool:
    """Whether a group holds one product."""
    return len(contractions(group.blocks[0].nodes)) == 1


def tile_gpu_group(
    group: Node, rows: int = 0, columns: int = 0, target: Target | None = None
) -> Node:
    """The kernel node of a group with one product. Raises CannotTile."""
    policy = tile_policy(group, as_gpu(target))
    if policy is None:
        raise CannotTile("it has no product")
    schedule, (down, across) = policy.of(group), (policy.rows, policy.columns)
    width = min(columns or schedule.block("n"), across)
    kernel = tile_gemm(group, width, min(rows or schedule.block("m", 1), down))
    return with_schedules(kernel, schedules_of(group)[:1])
