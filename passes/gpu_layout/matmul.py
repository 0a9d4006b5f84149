"""A matmul of tiles: its operands by rows and columns, and its sizes."""

from __future__ import annotations

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.types import DType
from stack.ir.warp_ops import MATRIX
from stack.passes.gpu_layout.contiguity import size_of


class Matmul:
    """A contraction `left @ right` of two matrices, either of which may be transposed.

    Attributes:
        node: the contraction.
        left: the operand with the rows.
        right: the operand with the columns.
        is_transposed: for each operand, True if the depth comes first in `left`, last in `right`.
    """

    def __init__(self, node: Node) -> None:
        rule = parse_rule(node.attrs["rule"])
        names = [[a.names[0] for a in side] for side in rule.inputs]
        rows, columns = (a.names[0] for a in rule.outputs[0])
        first = 0 if rows in names[0] else 1
        self.node = node
        self.left, self.right = node.args[first], node.args[1 - first]
        self.is_transposed = names[first][0] != rows, names[1 - first][1] != columns
        self.rows, self.columns = (size_of(node.tensor, i) for i in range(2))
        self.depth = size_of(self.left.tensor, 0 if self.is_transposed[0] else 1)

    @property
    def dtype(self) -> DType:
        """The type of the sums."""
        return self.node.dtype

    @property
    def fits_matrix_units(self) -> bool:
        """True if matrix instructions exist for its types and sizes."""
        kinds = {self.left.dtype.name, self.right.dtype.name}
        fits = not any(n % MATRIX for n in (self.rows, self.columns, self.depth))
        return fits and len(kinds) == 1 and kinds <= {"f16", "bf16"} and self.dtype.name == "f32"
