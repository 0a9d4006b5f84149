"""blocks: lower fusion groups, streams and bare ops to kernels of blocks, for GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.lines import with_lines
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_contraction, is_generated, is_stream, writes_by_data
from stack.passes.control import BlockPass
from stack.passes.gpu_products.group_split import unfuse_gemms
from stack.passes.gpu_products.tile_choice import is_given_to_library
from stack.passes.policies.lowerings import lowering_of
from stack.passes.policies.step_lowering import written
from stack.passes.retreat import without_kernel
from stack.passes.tile import check_code, note_width
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import alone, is_bare
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.equivalent_groups import CachedTransform
from stack.rewrite.log import Log
from stack.target import Gpu


@dataclass(frozen=True)
class Blocks(BlockPass):
    """Lower every fusion group and stream to a kernel at the tile level.

    A kernel follows the `schedule` of its group. The policies of `gpu_products` decide what the
    schedule leaves open, and all of it for a group without one.

    Attributes:
        refuse: ops that the backend has no code for; their groups stay as they are.
        dots: types in which the backend accumulates matmuls of tiles; empty for all.
    """

    refuse: tuple[str, ...] = ()
    dots: tuple[str, ...] = ()

    def change(self, block: Block, log: Log) -> Block:
        block = unfuse_gemms(block)
        changed: dict[Node, Node | Replacement] = {}
        kernel_of = CachedTransform(lambda group: self._kernel(group, log.gpu), written)
        for node in block.nodes:
            if writes_by_data(node):
                continue  # sequential over the data: left to a library
            is_own = is_generated(node) and not is_given_to_library(node)
            if not (is_bare(node) or is_own or is_stream(node)):
                continue
            lines = block.locs.get(node, ())
            group = alone(node, lines) if is_bare(node) else node
            try:
                kernel = kernel_of(group)
            except CannotTile as why:
                changed |= without_kernel(node, why, block, log, self, True)
                continue
            shown = f"%{block.names.get(node, node.op)}"
            if log.spend("blocks", lines, shown):
                note_width(group, log)
                changed[node] = kernel
                if log.on_kernel is not None:
                    log.on_kernel(kernel)
        return replace(block, changed)

    def _kernel(self, group: Node, gpu: Gpu) -> Node:
        """Lowers a group to its kernel.

        Raises CannotTile if it has none, or if a matmul accumulates in a type that is not in the
        option `dots`.
        """
        check_code(group, self.refuse)
        kernel = with_lines(lowering_of(group, gpu).kernel())
        for _, node in walk(kernel.blocks[0]):
            if is_contraction(node) and self.dots and str(node.dtype) not in self.dots:
                raise CannotTile(f"no tile product of {node.args[0].dtype} in {node.dtype}")
        return kernel
