"""Matmuls, each by the instruction that was selected for it."""

from __future__ import annotations

from stack.ir.node import Node
from stack.passes.gpu_layout.fma import Fma
from stack.passes.gpu_layout.instructions import Instructions
from stack.passes.gpu_layout.matmul import Matmul
from stack.passes.gpu_layout.mma import Mma
from stack.passes.gpu_layout.share import Layout, ThreadValue
from stack.passes.gpu_layout.warpgroup import Warpgroup


class Products:
    """Dispatches matmuls to threads, warps and warpgroups."""

    def __init__(
        self, instructions: Instructions, fma: Fma, mma: Mma, warpgroup: Warpgroup
    ) -> None:
        self.instructions = instructions
        self.fma = fma
        self.mma = mma
        self.warpgroup = warpgroup

    def multiply(
        self, node: Node, layout: Layout, start: ThreadValue, pending: int = 0
    ) -> ThreadValue:
        """The sums of a matmul in a layout, added to `start`.

        Args:
            pending: how many instructions of warpgroups, the newest, may still be incomplete.
        """
        matmul = Matmul(node)
        is_on_units = self.instructions.uses_matrix_units(matmul)
        if not is_on_units or layout != self.instructions.layout_of(matmul):
            return self.fma.multiply(matmul, layout, start)
        if not self.instructions.has_warpgroups:
            return self.mma.multiply(matmul, layout, start)
        return self.warpgroup.wait(self.warpgroup.multiply(matmul, layout, start), pending)
