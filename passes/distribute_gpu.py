"""distribute_gpu: kernels from the tile level to the loop level of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import rebuild
from stack.ir.node import Block, Func, Node
from stack.passes.distribute_gemm import find_dot
from stack.passes.distribute_gpu_frame import CannotDistribute
from stack.passes.distribute_gpu_rows import distribute_rows
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

__all__ = ["CannotDistribute", "DistributeGpu", "distribute_gpu_kernel"]


@dataclass(frozen=True)
class DistributeGpu(Pass):
    """Turn tile kernels into loops over blocks, warps and lanes.

    A sequence of warp loops is a sequence of phases: everything that one stores, the next may
    read. Registers that outlive a loop are memory `in local` whose first axes are warp and lane.
    """

    name: ClassVar[str] = "distribute_gpu"

    def run(self, func: Func, log: Log) -> Func:
        def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
            new = node
            if args != node.args or blocks != node.blocks:
                new = Node(node.op, args, node.attrs, node.type, blocks)
            if node.op != "kernel" or node.attrs["level"] != "tile":
                return new
            return distribute_gpu_kernel(new) if log.spend("distribute_gpu") else new

        return rebuild(func, visit)


def distribute_gpu_kernel(kernel: Node) -> Node:
    """One kernel from the tile level to the loop level of a GPU. Raises CannotDistribute."""
    block = kernel.blocks[0]
    if find_dot(block) is not None:
        raise CannotDistribute("a dot")
    block = distribute_rows(block)
    attrs = {**kernel.attrs, "level": "loop"}
    return Node("kernel", kernel.args, attrs, kernel.type, (block,))
