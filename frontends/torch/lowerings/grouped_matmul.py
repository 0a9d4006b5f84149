"""Lowerings of grouped matmuls: rows sorted by group, one matrix for each group.

`offs` has the end of each group. Torch does not define the result rows after the last end.
"""

from __future__ import annotations

from stack.frontends.torch.aten.lowering import Context, NotLowered, lowers
from stack.ir.node import Node
from stack.ir.types import DType

# by the ranks of the operands: rows times matrices; a sum over the rows of each group; matrices
# times columns, with the groups along an axis of the second operand
ROWS, SUMS, COLUMNS = (
    "s! k, g^ k n, g^ -> s! n",
    "m s!, s! n, g^ -> g^ m n",
    "k s!, g^ m k, g^ -> m s!",
)


@lowers("transformers.grouped_mm_fallback.default")
def _grouped_mm(cx: Context, x: Node, weight: Node, offs: Node) -> Node:
    return cx.b.ragged_dot(x, weight, offs, rule=ROWS)


@lowers("transformers.grouped_mm_fallback_backward.default")
def _grouped_mm_backward(
    cx: Context, x: Node, weight: Node, offs: Node, grad: Node
) -> tuple[Node, Node]:
    by_x = cx.b.ragged_dot(grad, weight, offs, rule="s! n, g^ k n, g^ -> s! k")
    return by_x, cx.b.ragged_dot(x, grad, offs, rule="s! m, s! n, g^ -> g^ m n")


@lowers("_grouped_mm.default")
def _aten_grouped_mm(
    cx: Context, x: Node, weight: Node, offs: Node | None = None, bias: Node | None = None,
    out_dtype: DType | None = None,
) -> Node:  # fmt: skip
    if bias is not None:
        raise NotLowered("a grouped product with a bias")
    ranks = (x.tensor.rank, weight.tensor.rank)
    if offs is None:
        return cx.cast(cx.b.dot(x, weight, rule="g m k, g k n -> g m n"), cx.want.dtype)
    args, rule = {
        (2, 3): ((x, weight), ROWS),
        (2, 2): ((x, weight), SUMS),
        (3, 2): ((weight, x), COLUMNS),
    }[ranks]
    loose = {} if rule == SUMS else {"loose": True}
    return cx.cast(cx.b.ragged_dot(*args, offs, rule=rule, **loose), cx.want.dtype)
