"""blocks: lower fusion groups, streams and bare ops to kernels of blocks, for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from stack.ir.func import Func
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_contraction, writes_by_data
from stack.passes.gpu_products.group_split import unfuse_gemms
from stack.passes.gpu_products.tile_choice import is_given_to_library
from stack.passes.retreat import without_kernel
from stack.passes.tile import Replacements, Tile
from stack.passes.tiling.frame import CannotTile
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass
from stack.target import Target


@dataclass(frozen=True)
class Blocks(Tile):
    """Lower every fusion group and stream to a kernel at the tile level.

    A kernel follows the `schedule` of its group. Policies decide what the schedule leaves open, and
    all of it for a group without one.

    Attributes:
        refuse: ops that the backend has no code for; their groups stay as they are.
        dots: types in which the backend accumulates matmuls of tiles; empty for all.
    """

    target_of: ClassVar[Callable[[Log], Target]] = attrgetter("gpu")
    # writes at indices that are data are sequential
    others: ClassVar[Sequence[Callable[[Node], bool]]] = (writes_by_data, is_given_to_library)
    dots: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        return BlockPass.run(self, func, log)

    def change(self, block: Block, log: Log) -> Block:
        return super().change(unfuse_gemms(block), log)

    def kernel(self, group: Node, log: Log) -> Node:
        """Lowers a group to its kernel.

        Raises CannotTile if it has none, or if a matmul accumulates in a type that is not in the
        option `dots`.
        """
        kernel = super().kernel(group, log)
        for _, node in walk(kernel.blocks[0]):
            if is_contraction(node) and self.dots and str(node.dtype) not in self.dots:
                raise CannotTile(f"no tile product of {node.args[0].dtype} in {node.dtype}")
        return kernel

    def fallback(
        self, node: Node, group: Node, block: Block, log: Log, why: CannotTile
    ) -> Replacements:
        """Returns the smaller groups that replace one which has no kernel."""
        return without_kernel(node, why, block, log, self, True)
