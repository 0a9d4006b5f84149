"""Lowerings of grouped products: rows sorted by group, one matrix for each group.

`offs` holds the end of each group. Which group a row is in is the number of ends that are not
past it, so that a mask `[group, row]` says all that the loop over groups would.
"""

from __future__ import annotations

from stack.frontends.aten import Context, NotLowered, lowers
from stack.ir.node import Node
from stack.ir.types import DType


def _membership(cx: Context, x: Node, offs: Node) -> Node:
    """`[group, row]`: whether a row lies in a group."""
    count, rows = offs.shape[0], x.shape[0]
    ends = cx.reshape(offs, (count, 1))
    place = cx.iota((count, rows), 1, offs.dtype)
    before_end = cx.elementwise("lt", place, ends)
    starts = cx.concat(
        [cx.full(0, offs.tensor.with_shape((1,))), cx.slice(offs, 0, 0, count - 1)], 0
    )
    return cx.elementwise(
        "and", before_end, cx.elementwise("ge", place, cx.reshape(starts, (count, 1)))
    )


def _grouped(cx: Context, x: Node, weight: Node, offs: Node, rule: str) -> Node:
    """Each row times the matrix of its group; rows in no group are 0."""
    inside = _membership(cx, x, offs)
    products = cx.b.dot(x, weight, rule=rule)
    mask = cx.broadcast(cx.reshape(inside, (*inside.shape, 1)), products.shape)
    return cx.reduce("sum", cx.select(mask, products, 0, products.dtype), [0])


@lowers("transformers.grouped_mm_fallback.default")
def _grouped_mm(cx: Context, x: Node, weight: Node, offs: Node) -> Node:
    return _grouped(cx, x, weight, offs, "s k, e k n -> e s n")


@lowers("transformers.grouped_mm_fallback_backward.default")
def _grouped_mm_backward(
    cx: Context, x: Node, weight: Node, offs: Node, grad: Node
) -> tuple[Node, Node]:
    grad_x = _grouped(cx, grad, weight, offs, "s n, e k n -> e s k")
    inside = _membership(cx, x, offs)
    mask = cx.broadcast(cx.reshape(inside, (*inside.shape, 1)), (*inside.shape, x.shape[1]))
    rows = cx.select(mask, x, 0, x.dtype)
    return grad_x, cx.b.dot(rows, grad, rule="e s k, s n -> e k n")


@lowers("_grouped_mm.default")
def _aten_grouped_mm(
    cx: Context, x: Node, weight: Node, offs: Node | None = None, bias: Node | None = None,
    out_dtype: DType | None = None,
) -> Node:  # fmt: skip
    if offs is None or bias is not None or x.tensor.rank != 2 or weight.tensor.rank != 3:
        raise NotLowered("a grouped product of other than rows with one matrix for each group")
    return cx.cast(_grouped(cx, x, weight, offs, "s k, e k n -> e s n"), cx.want.dtype)
