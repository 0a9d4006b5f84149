"""tile_gpu: matrix products to tile kernels whose tiles a block of threads of a GPU shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Func, Node
from stack.ir.types import DType
from stack.passes.control import changed_bodies
from stack.passes.distribute_gpu import CannotDistribute, distribute_gpu_kernel
from stack.passes.exact_tiling.gemm import check_worth, tile_gemm
from stack.passes.tile import CannotTile, alone
from stack.passes.tiling.contraction import roles_of
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.target import Gpu, Target, as_gpu

EDGE_COST = 48  # of a row or column of a tile, in products at one depth
BLOCK_COST = 2000  # of a tile
# of tiles by bits of an element; tensor cores multiply those of 16
SIDES = {16: (16, 32, 64, 128), 32: (32, 64, 128), 64: (32, 64)}


@dataclass(frozen=True)
class TileGpu(Pass):
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

    def run(self, func: Func, log: Log) -> Func:
        return Func(func.name, self._block(func.body, log), func.level)

    def _block(self, block: Block, log: Log) -> Block:
        """Loop and branch bodies first; the inside of a group is one kernel and is not walked."""
        changed = changed_bodies(block, lambda b: self._block(b, log))
        for node in block.nodes:
            group = alone(node) if node.op == "dot" else node
            if group.op != "fusion" or group.attrs["kind"] == "library" or not _is_product(group):
                continue
            name, lines = block.names.get(node, node.op), block.locs.get(node, ())
            try:
                kernel = self._kernel(group, log.gpu)
            except CannotTile as why:
                log.note(f"{name} is not staged: {why}", lines)
                continue
            if log.spend("tile_gpu", lines):
                changed[node] = Replacement(kernel)
        return replace(block, changed) if changed else block

    def _kernel(self, group: Node, gpu: Gpu) -> Node:
        nodes = group.blocks[0].nodes
        foreign = {n.op for n in nodes}.intersection(self.refuse)
        if foreign:
            raise CannotTile(f"no code for {', '.join(sorted(foreign))}")
        check_worth(next(n for n in nodes if n.op == "dot"))
        kernel = tile_gpu_group(group, self.rows, self.columns, gpu)
        try:
            distribute_gpu_kernel(kernel, target=gpu)
        except CannotDistribute as why:
            raise CannotTile(str(why)) from why
        return kernel


def _is_product(group: Node) -> bool:
    """Whether a group holds one product."""
    return sum(n.op == "dot" for n in group.blocks[0].nodes) == 1


def tile_gpu_group(
    group: Node, rows: int = 0, columns: int = 0, target: Target | None = None
) -> Node:
    """The kernel node of a group with one product. Raises CannotTile."""
    (dot,) = (n for n in group.blocks[0].nodes if n.op == "dot")
    roles = roles_of(dot)
    sizes = roles.sizes
    down, across = sizes[roles.row] if roles.row else 1, sizes[roles.lane]
    many = math.prod(sizes[n] for n in (*roles.batch, *roles.panels, *roles.outer))
    picked = pick_tile(down, across, many, dot.args[0].dtype, as_gpu(target))
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
