"""Lowerings of ATen pooling: one slice per tap, axis by axis."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from stack.frontends.torch.aten.conv import Ints, each, static, whole
from stack.frontends.torch.aten.lowering import Context, NotLowered, lowers, wide
from stack.ir.dim import Expr
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.types import I64, DType, TensorType


def window_sizes(x: Node, rank: int, out: TensorType) -> None:
    static(x)
    if any(isinstance(s, Expr) for s in out.shape[-rank:]):
        raise NotLowered("a window over symbolic sizes")


def _taps(
    cx: Context, x: Node, axis: int, taps: int, step: int, gap: int, count: int
) -> list[Node]:
    last = (count - 1) * step + 1
    return [cx.slice(x, axis, k * gap, k * gap + last, step) for k in range(taps)]


def _cover(
    cx: Context, x: Node, rank: int, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints,
    counts: Ints, value: float,
) -> Node:  # fmt: skip
    """Pads `x` with `value`, or crops it, to exactly the elements that the windows read."""
    lead = x.tensor.rank - rank
    low, high = [0] * lead, [0] * lead
    for i in range(rank):
        span = (counts[i] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1
        low.append(padding[i])
        high.append(span - padding[i] - x.shape[lead + i])
    return cx.pad(x, low, high, value)


def _pool(
    cx: Context, op: str, x: Node, rank: int, kernel: Ints, stride: Ints, dilation: Ints,
    counts: Ints,
) -> Node:  # fmt: skip
    for i in range(rank):
        axis = x.tensor.rank - rank + i
        parts = _taps(cx, x, axis, kernel[i], stride[i], dilation[i], counts[i])
        x = reduce(lambda a, b: cx.elementwise(op, a, b), parts)
    return x


def _max_pool(rank: int) -> None:
    @lowers(f"max_pool{rank}d_with_indices.default")
    def lower(
        cx: Context, x: Node, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        dilation: Ints = (1,), ceil_mode: bool = False,
    ) -> tuple[Node, Node]:  # fmt: skip
        want: TensorType = cx.want[0]
        window_sizes(x, rank, want)
        kernel, padding, dilation = (each(v, rank) for v in (kernel, padding, dilation))
        stride = each(stride, rank) if len(stride) else kernel
        counts = want.shape[-rank:]
        lowest = identity("max", x.dtype)
        wide_x = _cover(cx, x, rank, kernel, stride, padding, dilation, counts, lowest)
        best = _pool(cx, "max", wide_x, rank, kernel, stride, dilation, counts)
        place = _max_places(cx, x, best, wide_x, rank, kernel, stride, padding, dilation)
        return best, place


def _max_places(
    cx: Context, x: Node, best: Node, padded: Node, rank: int, kernel: Ints, stride: Ints,
    padding: Ints, dilation: Ints,
) -> Node:  # fmt: skip
    """Returns for each window the index of its first maximum, flat over the spatial axes of `x`.

    `best`: the maxima. `padded`: `x` with padding.
    """
    size = math.prod(x.shape[-rank:])
    counts = best.shape[-rank:]
    first = cx.full(size, TensorType(I64, best.shape))
    lead = x.tensor.rank - rank
    for tap in grid_points(kernel):
        part, place = padded, None
        for i, k in enumerate(tap):
            start = k * dilation[i]
            last = start + (counts[i] - 1) * stride[i] + 1
            part = cx.slice(part, lead + i, start, last, stride[i])
            line = cx.elementwise("mul", cx.iota(counts, i), stride[i])
            line = cx.elementwise("add", line, start - padding[i])
            inner = math.prod(x.shape[lead + i + 1 :])
            line = cx.elementwise("mul", line, inner)
            place = line if place is None else cx.elementwise("add", place, line)
        holds = cx.elementwise("eq", part, best)
        if x.dtype.is_float:
            holds = cx.elementwise("or", holds, cx.elementwise("isnan", part))
        assert place is not None
        place = cx.b.broadcast(place, axes=tuple(range(lead, lead + rank)), type=first.tensor)
        first = cx.elementwise("min", first, cx.select(holds, place, size, I64))
    return cx.elementwise("min", first, size - 1)


def grid_points(kernel: Ints) -> list[tuple[int, ...]]:
    points: list[tuple[int, ...]] = [()]
    for size in kernel:
        points = [(*p, k) for p in points for k in range(size)]
    return points


for _rank in (2, 3):
    _max_pool(_rank)


def _average_pool(rank: int) -> None:
    @lowers(f"avg_pool{rank}d.default")
    def lower(
        cx: Context, x: Node, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Node:  # fmt: skip
        want: TensorType = cx.want
        window_sizes(x, rank, want)
        kernel, padding = each(kernel, rank), each(padding, rank)
        stride = each(stride, rank) if len(stride) else kernel
        counts, ones = want.shape[-rank:], (1,) * rank
        out: DType = x.dtype
        x = cx.cast(x, wide(out))
        padded = _cover(cx, x, rank, kernel, stride, padding, ones, counts, 0)
        total = _pool(cx, "add", padded, rank, kernel, stride, ones, counts)
        divisor = divisors(
            cx, x, total, rank, (kernel, stride, padding), count_include_pad, divisor_override
        )
        return cx.cast(cx.elementwise("div", total, divisor, dtype=total.dtype), out)


for _rank in (1, 2, 3):
    _average_pool(_rank)


def divisors(
    cx: Context, x: Node, total: Node, rank: int, window: tuple[Ints, Ints, Ints],
    include_pad: bool, override: int | None,
) -> Node | float:  # fmt: skip
    """Returns the number of elements that each window averages."""
    kernel, stride, padding = window
    if override is not None:
        return float(override)
    result: Node | None = None
    even = True
    for i in range(rank):
        size, count = whole(x.shape[-rank + i]), whole(total.shape[-rank + i])
        pad = padding[i]
        sizes = []
        for k in range(count):
            start = k * stride[i] - pad
            end = min(start + kernel[i], size + pad)
            if not include_pad:
                start, end = max(start, 0), min(end, size)
            sizes.append(float(end - start))
        even = even and all(s == kernel[i] for s in sizes)
        axis = total.tensor.rank - rank + i
        line = cx.b.broadcast(cx.b.const(sizes, x.dtype), type=total.tensor, axes=(axis,))
        result = line if result is None else cx.elementwise("mul", result, line)
    if even or result is None:
        return float(math.prod(kernel))
    return result


@lowers(
    "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default"
)
def _adaptive_average(cx: Context, x: Node, size: Ints) -> Node:
    rank = {"1": 1, "2": 2, "3": 3}[cx.name.split("pool")[1][0]]
    want: TensorType = cx.want
    window_sizes(x, rank, want)
    pairs = list(zip(x.shape[-rank:], want.shape[-rank:], strict=True))
    if any(not o or i % o for i, o in pairs):
        return _adaptive_means(cx, x, rank, want)
    lead = x.shape[: x.tensor.rank - rank]
    shape: list[Any] = list(lead)
    for i, o in pairs:
        shape.extend((o, i // o))
    axes = tuple(len(lead) + 2 * k + 1 for k in range(rank))
    out: DType = x.dtype
    split = cx.reshape(cx.cast(x, wide(out)), shape)
    total = cx.reduce("sum", split, axes)
    count = float(math.prod(i // o for i, o in pairs))
    return cx.cast(cx.reshape(cx.elementwise("div", total, count), want.shape), out)


def adaptive_windows(size: int, count: int) -> list[tuple[int, int]]:
    """Returns the first and the last position, exclusive, of each window over an axis of `size`."""
    return [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]


def _adaptive_means(cx: Context, x: Node, rank: int, want: TensorType) -> Node:
    """Averages windows of several sizes: one mean per result element, axis by axis."""
    out: DType = x.dtype
    x = cx.cast(x, wide(out))
    for i in range(rank):
        axis = x.tensor.rank - rank + i
        size, count = whole(x.shape[axis]), whole(want.shape[axis])
        if not count:
            return cx.full(0, want)
        parts: list[Node] = []
        for start, end in adaptive_windows(size, count):
            total = cx.reduce("sum", cx.slice(x, axis, start, end), [axis], keep=True)
            parts.append(cx.elementwise("div", total, float(end - start)))
        x = cx.concat(parts, axis)
    return cx.cast(x, out)
