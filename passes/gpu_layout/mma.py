"""Matmuls by matrix instructions of single warps, whose operands are in registers."""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.ir.node import Node
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.instruction_layouts import depth_share, right_share, warp_digits
from stack.passes.gpu_layout.matmul import Matmul
from stack.passes.gpu_layout.operands import Operands
from stack.passes.gpu_layout.share import Digit, Layout, ThreadValue
from stack.passes.gpu_layout.values import Values


@dataclass(frozen=True)
class Mma:
    """Builds matmuls of tiles by the matrix instruction of single warps, with operands in
    registers.
    """

    tiles: ThreadBuilder
    values: Values
    operands: Operands
    _loaded: dict[tuple[Node, Layout], ThreadValue] = field(default_factory=dict, init=False)

    def multiply(self, matmul: Matmul, layout: Layout, start: ThreadValue) -> ThreadValue:
        """Builds a matmul in the given layout of its sums, and adds it to `start`."""
        depth = depth_share(matmul.depth)
        rows, columns = layout[0], right_share(layout[1])
        left = self._operand(matmul.left, (rows, depth), 1, matmul.is_transposed[0])
        right = self._operand(matmul.right, (depth, columns), 0, matmul.is_transposed[1])
        return ThreadValue(self.tiles.b.mma_sync(left.node, right.node, start.node), layout)

    def _operand(self, node: Node, layout: Layout, depth: int, is_transposed: bool) -> ThreadValue:
        """Returns an operand in the layout of the instruction, from shared memory if it can load
        that.

        Args:
            node: the operand.
            layout: of rows and depth, or of depth and columns.
            depth: the number of the depth among these two axes.
            is_transposed: True if the operand has its axes in the other order.
        """
        own = layout[::-1] if is_transposed else layout
        built = self.values.built(node)
        digits = warp_digits(layout[1 - depth])
        if digits is not None and (built is None or built.layout != own):
            matrix = (layout[1 - depth], layout[depth])
            made = self._load_matrix(node, matrix, digits, (depth == 0) != is_transposed)
            return self.tiles.transpose(made, (1 - depth, depth))
        made = self.values.at(node, own)
        return self.tiles.transpose(made, (1, 0)) if is_transposed else made

    def _load_matrix(
        self, node: Node, layout: Layout, digits: list[tuple[Digit, int]], is_column_major: bool
    ) -> ThreadValue:
        """Loads an operand from shared memory, four matrices of 8 x 8 at a time.

        Args:
            node: the operand.
            layout: of rows (or columns), then depth.
            digits: of the warps, in the number of the first row.
            is_column_major: True if memory has the depth first.
        """
        key = (node, layout)
        if key not in self._loaded:
            tiles = self.tiles
            staged = self.operands.padded(node)
            row, column = tiles.sum([tiles.full(0), *tiles.terms(digits)]), tiles.full(0)
            if staged.row is not None and is_column_major:
                column = tiles.apply("add", column, staged.row)
            elif staged.row is not None:
                row = tiles.apply("add", row, staged.row)
            args = [staged.memory, row.node, column.node]
            attrs = {"transposed": is_column_major}
            self._loaded[key] = tiles.op("load_matrix", args, node.dtype, layout, attrs)
        return self._loaded[key]
