"""Lowerings of searches: the position of values among sorted edges, and in equal bins."""

from __future__ import annotations

from typing import Any

from stack.frontends.torch.aten.bounds import in_range
from stack.frontends.torch.aten.lowering import Context, NotLowered, letters, lowers
from stack.ir.node import Node
from stack.ir.types import F32, F64, I32, I64


@lowers("searchsorted.Tensor", "bucketize.Tensor", "bucketize.Scalar", "searchsorted.Scalar")
def _searchsorted(
    cx: Context, first: Any, second: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Node | None = None,
) -> Node:  # fmt: skip
    edges, values = (second, first) if "bucketize" in cx.name else (first, second)
    lead = letters(edges.tensor.rank)[:-1]
    if sorter is not None:
        row = " ".join([*lead, "k"])
        sorter = in_range(cx, sorter, edges.shape[-1], "searchsorted")
        edges = cx.b.gather(edges, sorter, rule=f"{' '.join([*lead, 'n!'])}, {row} -> {row}")
    beyond = "gt" if right or side == "right" else "ge"
    kind = cx.common(edges, values)
    values = cx.broadcast(cx.scalar(values, kind), cx.want.shape)
    edges = cx.cast(edges, kind)
    size = edges.shape[-1]
    if isinstance(size, int):
        return cx.cast(_halved(cx, edges, size, values, beyond), cx.want.dtype)
    return _counted(cx, edges, values, beyond)


def _halved(cx: Context, edges: Node, size: int, values: Node, beyond: str) -> Node:
    """Returns the position of each value among sorted edges, by eager's binary search.

    `beyond`: the comparison that is true for edges to the right of a value's position. All steps
    are eager's, so edges that are unsorted or nan give eager's result.
    """
    whole = letters(values.tensor.rank)
    lead = whole[: edges.tensor.rank - 1]
    rule = f"{' '.join([*lead, 'n!'])}, {' '.join(whole)} -> {' '.join(whole)}"
    kind = I32 if size < 1 << 30 else I64  # can represent the sum of two positions
    start, end = (cx.broadcast(cx.scalar(p, kind), values.shape) for p in (0, size))
    left = size  # the smallest number of candidates left for any value
    for _ in range(size.bit_length()):
        middle = cx.elementwise("shr", cx.elementwise("add", start, end), 1)
        at = middle if left else cx.elementwise("min", middle, size - 1)
        stop = cx.elementwise(beyond, cx.b.gather(edges, at, rule=rule), values)
        if not left:
            stop = cx.elementwise("or", stop, cx.elementwise("eq", start, end))
        start = cx.select(stop, start, cx.elementwise("add", middle, 1))
        end = cx.select(stop, middle, end)
        left = max(left - 1, 0) // 2
    return start


def _counted(cx: Context, edges: Node, values: Node, beyond: str) -> Node:
    """Counts the edges that are not beyond a value, if the number of edges is symbolic."""
    shape, lead = values.shape, edges.shape[:-1]
    column = cx.reshape(values, (*shape, 1))
    row = cx.reshape(edges, (*lead, *(1,) * (len(shape) - len(lead)), edges.shape[-1]))
    before = cx.elementwise("not", cx.elementwise(beyond, row, column))
    wide = cx.broadcast(before, (*shape, edges.shape[-1]))
    return cx.reduce("sum", cx.cast(wide, cx.want.dtype), [len(shape)])


@lowers("histc.default")
def _histc(cx: Context, x: Node, bins: int = 100, min: Any = 0, max: Any = 0) -> Node:
    """Counts values in equal bins over [min, max]; over the data's range if both are equal."""
    dtype = x.dtype
    x = cx.reshape(cx.cast(x, F32 if dtype.bits <= 32 else F64), [x.tensor.size])
    low, high = cx.scalar(float(min), x.dtype), cx.scalar(float(max), x.dtype)
    if min == max == 0:
        if not x.tensor.size:
            raise NotLowered("the range of nothing")
        low, high = cx.reduce("min", x, [0]), cx.reduce("max", x, [0])
    if min == max:
        flat = cx.elementwise("eq", low, high)
        low = cx.select(flat, cx.elementwise("sub", low, 1.0), low)
        high = cx.select(flat, cx.elementwise("add", high, 1.0), high)
    width = cx.elementwise("sub", high, low)
    place = cx.elementwise("mul", cx.elementwise("sub", x, low), float(bins))
    place = cx.elementwise("floor", cx.elementwise("div", place, width))
    place = cx.elementwise("min", place, float(bins - 1))
    inside = cx.elementwise("and", cx.elementwise("ge", x, low), cx.elementwise("le", x, high))
    place = cx.reshape(cx.select(inside, place, -1.0, x.dtype), (1, x.tensor.size))
    each = cx.reshape(cx.cast(cx.iota([bins], 0), x.dtype), (bins, 1))
    return cx.reduce("sum", cx.cast(cx.elementwise("eq", place, each), cx.want.dtype), [1])
