"""distribute_gpu: kernels from the tile level to the loop level of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from stack.errors import KernelRefused, UsageError
from stack.ir.builder import rebuild
from stack.ir.node import Block, Func, Node
from stack.ir.traits import unconverted
from stack.passes.cpu_loops.gemm import find_dot
from stack.passes.gpu_layout.lower import lower_blocks
from stack.passes.gpu_loops.fma import Fma
from stack.passes.gpu_loops.frame import CannotDistribute
from stack.passes.gpu_loops.tensor import Tensor
from stack.passes.gpu_loops.threads import Direct, Tiled
from stack.passes.gpu_loops.tile_policy import STAGES, form_of
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.schedule import Schedule, first_schedule
from stack.target import Target, as_gpu

__all__ = ["PRODUCTS", "CannotDistribute", "DistributeGpu", "distribute_gpu_kernel"]

# schedules of a matrix product, each faster than the one before it on large products
PRODUCTS: dict[str, Callable[[Block, Schedule], Block]] = {
    "naive": lambda block, _: Direct(block, is_coalesced=False).block(),
    "coalesced": lambda block, _: Direct(block, is_coalesced=True).block(),
    "shared": lambda block, _: Tiled(block, is_single=True).block(),
    "register": lambda block, _: Tiled(block, is_single=False).block(),
    "tensor": lambda block, schedule: Tensor(block, 1, schedule.warps).block(),
    "pipelined": lambda block, schedule: _pipelined(block, schedule).block(),
}


@dataclass(frozen=True)
class DistributeGpu(Pass):
    """Turn tile kernels into what warps and lanes do.

    Kernels of blocks keep their ops and get layouts, see `gpu_layout`. Products that `tile_gpu`
    made are staged: a sequence of warp loops is a sequence of phases, and everything that one
    stores, the next may read. Registers that outlive a loop are memory `in local` whose first axes
    are warp and lane.

    Attributes:
        product: schedule of matrix products, one of `PRODUCTS`; "auto" picks the last that fits.
    """

    name: ClassVar[str] = "distribute_gpu"
    product: str = "auto"

    def run(self, func: Func, log: Log) -> Func:
        refused: dict[Node, str] = {}

        def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
            new = node
            if args != node.args or blocks != node.blocks:
                new = Node(node.op, args, node.attrs, node.type, blocks)
            if node.op != "kernel" or node.attrs["level"] != "tile":
                return new
            if not log.spend("distribute_gpu"):
                return new
            try:
                return distribute_gpu_kernel(new, self.product, log.gpu)
            except CannotDistribute as why:
                refused[new] = str(why)
                return new

        made = rebuild(func, visit)
        if refused:
            raise KernelRefused(refused)
        return made


def distribute_gpu_kernel(
    kernel: Node, product: str = "auto", target: Target | None = None
) -> Node:
    """One kernel from the tile level to the loop level of a GPU. Raises CannotDistribute."""
    block = kernel.blocks[0]
    if "warps" in kernel.attrs:
        warps, stages = int(kernel.attrs["warps"]), int(kernel.attrs.get("stages") or 1)
        block = lower_blocks(block, warps, stages, as_gpu(target))
    elif find_dot(block) is not None:
        block = _product(block, product, first_schedule(kernel) or Schedule())
    else:
        raise CannotDistribute("it has no product, and is no kernel of blocks")
    attrs = {**kernel.attrs, "level": "loop"}
    return Node("kernel", kernel.args, attrs, kernel.type, (block,))


def _pipelined(block: Block, schedule: Schedule) -> Fma | Tensor:
    stages = schedule.stages or STAGES
    return Fma(block, stages) if _is_wide(block) else Tensor(block, stages, schedule.warps)


def _product(block: Block, product: str, schedule: Schedule) -> Block:
    product = form_of(schedule) or product if product == "auto" else product
    if product != "auto":
        if product not in PRODUCTS:
            raise UsageError(f"no schedule {product!r}; there are: {', '.join(PRODUCTS)}")
        return PRODUCTS[product](block, schedule)
    plain = "register" if _is_wide(block) else "tensor"
    try:
        return PRODUCTS[plain if schedule.stages == 1 else "pipelined"](block, schedule)
    except CannotDistribute:
        return PRODUCTS[plain](block, schedule)


def _is_wide(block: Block) -> bool:
    """Whether a product is one of floats that tensor cores do not take."""
    dot = find_dot(block)
    assert dot is not None
    return unconverted(dot.args[0]).dtype.bits != 16
