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
from stack.target import Target, as_gpu


@dataclass(frozen=True)
class DistributeGpu(Pass):
    """Lower tile kernels to code of warps and lanes.

    Kernels keep their ops, and their tiles get layouts: see `gpu_layout`.
    """

    def run(self, func: Func, log: Log) -> Func:
        refused: dict[Node, str] = {}

        def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
            new = node
            if args != node.args or blocks != node.blocks:
                new = Node(node.op, args, node.attrs, node.type, blocks)
            if not is_kernel(node) or node.attrs["level"] != "tile":
                return new
            if not log.spend("distribute_gpu"):
                return new
            try:
                return distribute_gpu_kernel(new, log.gpu)
            except CannotDistribute as why:
                refused[new] = str(why)
                return new

        made = rebuild(func, visit)
        if refused:
            raise KernelRefused(refused)
        return made


def distribute_gpu_kernel(kernel: Node, target: Target | None = None) -> Node:
    """Lowers one kernel from the tile level to the loop level of a GPU. Raises CannotDistribute."""
    block = lower_kernel(kernel, as_gpu(target))
    attrs = {**kernel.attrs, "level": "loop"}
    return Node("kernel", kernel.args, attrs, kernel.type, (block,))
