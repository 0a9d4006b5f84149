"""distribute_gpu: lower kernels from the tile level to the loop level of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.builder import rebuild
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.refusal import KernelRefused
from stack.ir.traits import is_kernel
from stack.passes.gpu_layout.attributes import CannotDistribute
from stack.passes.gpu_layout.lower import lower_kernel
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class DistributeGpu(Pass):
    """Lower tile kernels to code of warps and lanes.

    Kernels keep their ops, and their tiles get layouts: see `gpu_layout`.
    """

    def run(self, func: Func, log: Log) -> Func:
        refused: dict[Node, str] = {}

        def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
            new = node.rebuilt(args, blocks=blocks)
            is_tiled = is_kernel(node) and node.attrs["level"] == "tile"
            if not (is_tiled and log.spend("distribute_gpu")):
                return new
            try:
                return lower_kernel(new, log.gpu)
            except CannotDistribute as why:
                refused[new] = str(why)
                return new

        made = rebuild(func, visit)
        if refused:
            raise KernelRefused(refused)
        return made
