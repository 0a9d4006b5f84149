"""Lowerings of the derivatives of ATen pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from typing import Any

from stack.frontends.torch.aten.conv import Ints, each, whole
from stack.frontends.torch.aten.lowering import Context, NotLowered, lowers, wide
from stack.frontends.torch.lowerings.pool import (
    adaptive_windows,
    divisors,
    grid_points,
    window_sizes,
)
from stack.ir.node import Node
from stack.ir.types import I64

MOST_COVERS = 16  # scatter the gradient if an element is in more windows than this, else gather it


@lowers("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def _max_pool_backward(
    cx: Context, grad: Node, x: Node, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints,
    ceil_mode: bool, places: Node,
) -> Node:  # fmt: skip
    rank = 3 if "pool3d" in cx.name else 2
    kernel, padding, dilation = (each(v, rank) for v in (kernel, padding, dilation))
    stride = each(stride, rank) if len(stride) else kernel
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    covers = [-(-r // s) for r, s in zip(reach, stride, strict=True)]
    # for three axes Triton 3.6 computes one element in a hundred wrong; its interpreter does not
    if rank > 2 or math.prod(covers) > MOST_COVERS:
        return _scattered(cx, grad, x, places, rank)
    window_sizes(x, rank, grad.tensor)
    lead = x.tensor.rank - rank
    sizes = x.shape[lead:]
    own = cx.reshape(cx.iota([math.prod(sizes)], 0), sizes)
    own = cx.b.broadcast(own, axes=tuple(range(lead, lead + rank)), type=x.tensor.with_dtype(I64))
    total: Node | None = None
    for back in grid_points(covers):
        place, share = (
            _covering(cx, v, sizes, stride, padding, back, outside)
            for v, outside in ((places, -1), (cx.cast(grad, wide(grad.dtype)), 0))
        )
        share = cx.select(cx.elementwise("eq", place, own), share, 0, share.dtype)
        total = share if total is None else cx.elementwise("add", total, share)
    assert total is not None
    return cx.cast(total, grad.dtype)


def _covering(
    cx: Context, values: Node, sizes: Sequence[Any], stride: Ints, padding: Ints, back: Ints,
    outside: float,
) -> Node:  # fmt: skip
    """Returns for each element of the input the entry in `values` of one window that covers it.

    `values` has one entry per window. Along each axis that is window `(position + padding) //
    stride - back`, counted back from the last one that starts at or before the element; `outside`
    if there is none.
    """
    lead = values.tensor.rank - len(sizes)
    low, high = [0] * lead, [0] * lead
    shape, kept = list(values.shape[:lead]), list(range(lead))
    for size, step, pad, far, count in zip(
        sizes, stride, padding, back, values.shape[lead:], strict=True
    ):
        first, last = pad // step - far, (size - 1 + pad) // step - far
        low.append(-first)
        high.append(last - (count - 1))
        kept.append(len(shape))
        shape += [last - first + 1, step]
    values = cx.pad(values, low, high, outside)
    each_place = cx.b.broadcast(
        values, axes=tuple(kept), type=values.tensor.with_shape(tuple(shape))
    )
    merged = [shape[i] * shape[i + 1] for i in range(lead, len(shape), 2)]
    found = cx.reshape(each_place, (*shape[:lead], *merged))
    for axis, (size, step, pad) in enumerate(zip(sizes, stride, padding, strict=True), lead):
        found = cx.slice(found, axis, pad % step, pad % step + size)
    return found


def _scattered(cx: Context, grad: Node, x: Node, places: Node, rank: int) -> Node:
    """Computes the gradient of max pooling: adds each gradient at the index its window selected.

    `places`: these indices, flat over the spatial axes of `x`.
    """
    lead = x.shape[: x.tensor.rank - rank]
    size = math.prod(x.shape[-rank:])
    flat = cx.full(0, x.tensor.with_shape((math.prod(lead), size)))
    count = math.prod(grad.shape[-rank:])
    places = cx.reshape(places, (math.prod(lead), count))
    updates = cx.reshape(grad, (math.prod(lead), count))
    rows = cx.iota([math.prod(lead)], 0)
    out = cx.b.scatter(flat, rows, places, updates, rule="a! b!, i, i k, i k -> a! b!", kind="add")
    return cx.reshape(out, x.shape)


@lowers("adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")
def _adaptive_max_backward(cx: Context, grad: Node, x: Node, places: Node) -> Node:
    rank = 3 if "pool3d" in cx.name else 2
    window_sizes(x, rank, grad.tensor)
    return _scattered(cx, grad, x, places, rank)


@lowers("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def _adaptive_average_backward(cx: Context, grad: Node, x: Node) -> Node:
    rank = 3 if "pool3d" in cx.name else 2
    window_sizes(x, rank, grad.tensor)
    if not all(grad.shape):
        raise NotLowered("adaptive pooling without windows")
    lead, axes = x.shape[: x.tensor.rank - rank], range(x.tensor.rank - rank, x.tensor.rank)
    if any(x.shape[a] % grad.shape[a] for a in axes):
        share = cx.cast(grad, wide(grad.dtype))
        for axis in axes:
            share = _spread_windows(cx, share, axis, whole(x.shape[axis]))
        return cx.cast(share, grad.dtype)
    sizes = [x.shape[a] // grad.shape[a] for a in axes]
    share = cx.elementwise("div", grad, float(math.prod(sizes)))
    apart = [v for a in axes for v in (grad.shape[a], 1)]
    spread = [v for a, size in zip(axes, sizes, strict=True) for v in (grad.shape[a], size)]
    share = cx.broadcast(cx.reshape(share, (*lead, *apart)), (*lead, *spread))
    return cx.reshape(share, x.shape)


def _spread_windows(cx: Context, grad: Node, axis: int, size: int) -> Node:
    """Gives each element of an axis its share of the means of all windows that cover it."""
    windows = adaptive_windows(size, whole(grad.shape[axis]))
    counts = cx.b.const([float(end - start) for start, end in windows], grad.dtype)
    share = cx.elementwise("div", grad, cx.b.broadcast(counts, type=grad.tensor, axes=(axis,)))

    def covering(position: int) -> tuple[int, int]:
        found = [k for k, (start, end) in enumerate(windows) if start <= position < end]
        return found[0], found[-1] + 1

    parts: list[Node] = []
    for (first, limit), run in groupby(range(size), key=covering):
        total = cx.reduce("sum", cx.slice(share, axis, first, limit), [axis], keep=True)
        shape = [*total.shape]
        shape[axis] = len(list(run))
        parts.append(cx.broadcast(total, shape))
    return cx.concat(parts, axis)


@lowers("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def _average_backward(
    cx: Context, grad: Node, x: Node, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Node:  # fmt: skip
    rank = 3 if "pool3d" in cx.name else 2
    window_sizes(x, rank, grad.tensor)
    kernel, padding = each(kernel, rank), each(padding, rank)
    stride = each(stride, rank) if len(stride) else kernel
    window = (kernel, stride, padding)
    divisor = divisors(cx, x, grad, rank, window, count_include_pad, divisor_override)
    share = cx.elementwise("div", grad, divisor, dtype=grad.dtype)
    lead = x.tensor.rank - rank
    for i in range(rank):
        share = _spread_axis(
            cx, share, lead + i, x.shape[lead + i], kernel[i], stride[i], padding[i]
        )
    return share


def _spread_axis(
    cx: Context, grad: Node, axis: int, size: Any, kernel: int, stride: int, padding: int
) -> Node:
    """Adds each element to all elements of its window: one shifted copy per tap."""
    count = whole(grad.shape[axis])
    span = (count - 1) * stride + kernel
    zeros: list[Any] = [0] * grad.tensor.rank
    parts: list[Node] = []
    for k in range(kernel):
        low, high, gap = list(zeros), list(zeros), list(zeros)
        low[axis] = k
        high[axis] = span - k - ((count - 1) * stride + 1)
        gap[axis] = stride - 1
        parts.append(
            cx.b.pad(
                grad,
                cx.scalar(0, grad.dtype),
                low=tuple(low),
                high=tuple(high),
                interior=tuple(gap),
            )
        )
    total = reduce(lambda a, b: cx.elementwise("add", a, b), parts)
    low, high = list(zeros), list(zeros)
    low[axis], high[axis] = -padding, size - (span - padding)
    return cx.pad(total, low, high, 0)
