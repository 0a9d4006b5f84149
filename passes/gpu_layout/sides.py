"""The operands of a product of tiles, as those who multiply them name their axes."""

from __future__ import annotations

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.warp_ops import MATRIX
from stack.passes.gpu_layout.runs import size_of


class Sides:
    """The operands of a product, rows first, and its sizes.

    Attributes:
        left: the operand that has the rows.
        right: the one that has the columns.
        names: of its rows and of its columns.
        is_turned: of both, whether the depth comes first in the left, last in the right.
    """

    def __init__(self, dot: Node) -> None:
        rule = parse_rule(dot.attrs["rule"])
        names = [[a.names[0] for a in side] for side in rule.inputs]
        self.names = rows, columns = tuple(a.names[0] for a in rule.outputs[0])
        first = 0 if rows in names[0] else 1
        self.left, self.right = dot.args[first], dot.args[1 - first]
        self.is_turned = names[first][0] != rows, names[1 - first][1] != columns
        self.rows, self.columns = (size_of(dot.tensor, i) for i in range(2))
        self.depth = size_of(self.left.tensor, 0 if self.is_turned[0] else 1)

    def is_for_mma(self, dot: Node) -> bool:
        """Whether matrix instructions do it."""
        kinds = {self.left.dtype.name, self.right.dtype.name}
        fits = not any(n % MATRIX for n in (self.rows, self.columns, self.depth))
        return fits and len(kinds) == 1 and kinds <= {"f16", "bf16"} and dot.dtype.name == "f32"
