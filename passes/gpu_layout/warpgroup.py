"""Matmuls by instructions of four warps, which read operands from shared memory.

The right operand is in shared memory, and so is the left one unless it was computed in registers.
The instruction is asynchronous: a wait precedes the first use of its sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.node import Node
from stack.ir.warp_ops import GROUP, WARP
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.instruction_layouts import depth_share, warpgroup_grid
from stack.passes.gpu_layout.matmul import Matmul
from stack.passes.gpu_layout.operands import Operands
from stack.passes.gpu_layout.share import Digit, Layout, ThreadValue
from stack.passes.gpu_layout.values import Values


@dataclass(frozen=True)
class Warpgroup:
    """Builds matmuls by the asynchronous instructions of warpgroups (four warps)."""

    tiles: ThreadBuilder
    values: Values
    operands: Operands

    def multiply(self, matmul: Matmul, layout: Layout, start: ThreadValue) -> ThreadValue:
        """The sums of a matmul, added to `start`; they are complete after `wait`."""
        down, across = warpgroup_grid(matmul.rows, self.tiles.warps)
        row = self._start(Digit(down, WARP * GROUP), matmul.rows // down)
        column = self._start(Digit(across, WARP * GROUP * down), matmul.columns // across)
        is_column_major = [matmul.is_transposed[0], not matmul.is_transposed[1]]
        left = self.values.built(matmul.left)
        own = (layout[0], depth_share(matmul.depth))
        if left is not None and left.layout == own and not is_column_major[0]:
            first = [left.node]
        else:
            first = self._matrix(matmul.left, row, is_column_major[0])
        second = self._matrix(matmul.right, column, is_column_major[1])
        attrs = {"depth": matmul.depth, "transposed": is_column_major}
        args = [start.node, *first, *second]
        return ThreadValue(self.tiles.b.op("warpgroup_mma", args, attrs), layout)

    def wait(self, sums: ThreadValue, pending: int = 0) -> ThreadValue:
        """Returns the sums once all instructions but the newest `pending` ones are complete."""
        made = self.tiles.b.op("warpgroup_wait", [sums.node], {"pending": pending})
        return ThreadValue(made, sums.layout)

    def _start(self, digit: Digit, size: int) -> ThreadValue:
        """Returns the first row or column of the part of a matmul that each warpgroup computes;
        `digit` of the thread number selects the part, `size` is its length.
        """
        if digit.count == 1:
            return self.tiles.full(0)
        return self.tiles.scaled(self.tiles.digit(digit), size)

    def _matrix(self, node: Node, start: ThreadValue, is_column_major: bool) -> list[Node]:
        """Returns an operand in shared memory and the row and column at which the part of a
        warpgroup begins, as arguments of its instruction.
        """
        staged = self.operands.swizzled(node)
        zero = self.tiles.full(0)
        row, column = (zero, start) if is_column_major else (start, zero)
        if staged.row is not None:
            row = staged.row if is_column_major else self.tiles.apply("add", row, staged.row)
        return [staged.memory, row.node, column.node]
