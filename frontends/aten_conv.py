"""Lowerings of ATen convolution and pooling, with their derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

from stack.frontends.aten import Context, NotLowered, lowers, wide
from stack.ir.dim import Expr
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.types import I64, DType, TensorType

# whole numbers: windows are static, `_static` and `_window_sizes` see to it
Ints = Sequence[Any]


def _each(values: Ints, rank: int) -> tuple[int, ...]:
    values = tuple(values)
    return values * rank if len(values) == 1 else values


def _static(x: Node) -> None:
    if any(isinstance(s, Expr) for s in x.shape[1:]):
        raise NotLowered(f"a window over the symbolic sizes of {x.type}")


def _whole(size: Any) -> int:
    if not isinstance(size, int):
        raise NotLowered(f"a window over the symbolic size {size}")
    return size


# ---- convolution


@lowers("convolution.default")
def _convolution(
    cx: Context, x: Node, weight: Node, bias: Node | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
) -> Node:  # fmt: skip
    batched = x.tensor.rank == weight.tensor.rank
    if not batched:
        x = cx.reshape(x, (1, *x.shape))
    rank = x.tensor.rank - 2
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    if transposed:
        extra = _each(output_padding, rank)
        y = _transposed(cx, x, weight, stride, padding, dilation, extra, groups)
    else:
        y = _conv(cx, x, weight, stride, padding, padding, dilation=dilation, groups=groups)
    if bias is not None:
        y = cx.elementwise("add", y, cx.reshape(bias, (*bias.shape, *(1,) * rank)))
    return y if batched else cx.reshape(y, y.shape[1:])


def _conv(
    cx: Context, x: Node, weight: Node, stride: Ints, low: Ints, high: Ints, *,
    spread: Ints | None = None, dilation: Ints, groups: int,
) -> Node:  # fmt: skip
    rank = x.tensor.rank - 2
    return cx.b.conv(
        x, weight, stride=tuple(stride), low=tuple(low), high=tuple(high),
        lhs_dilation=tuple(spread or (1,) * rank), rhs_dilation=tuple(dilation), groups=groups,
    )  # fmt: skip


def _swapped(cx: Context, weight: Node, groups: int) -> Node:
    """`[g * i, o, k...]` as `[g * o, i, k...]`, taps reversed: the kernel of the transpose."""
    inner, outer, *taps = weight.shape
    split = cx.reshape(weight, (groups, inner // groups, outer, *taps))
    turned = cx.transpose(split, (0, 2, 1, *range(3, 3 + len(taps))))
    kernel = cx.reshape(turned, (groups * outer, inner // groups, *taps))
    return cx.b.reverse(kernel, axes=tuple(range(2, 2 + len(taps))))


def _transposed(
    cx: Context, x: Node, weight: Node, stride: Ints, padding: Ints, dilation: Ints, extra: Ints,
    groups: int,
) -> Node:  # fmt: skip
    taps = weight.shape[2:]
    reach = [(k - 1) * d for k, d in zip(taps, dilation, strict=True)]
    low = [r - p for r, p in zip(reach, padding, strict=True)]
    high = [lo + e for lo, e in zip(low, extra, strict=True)]
    ones = (1,) * len(taps)
    kernel = _swapped(cx, weight, groups)
    return _conv(cx, x, kernel, ones, low, high, spread=stride, dilation=dilation, groups=groups)


@lowers("convolution_backward.default")
def _convolution_backward(
    cx: Context, grad: Node, x: Node, weight: Node, bias_sizes: Any, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, mask: Sequence[bool],
) -> tuple[Node | None, ...]:  # fmt: skip
    if transposed or x.tensor.rank != weight.tensor.rank:
        raise NotLowered("the derivative of a transposed convolution")
    _static(x)
    rank = x.tensor.rank - 2
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    grad_x = _grad_input(cx, grad, x, weight, stride, padding, dilation, groups)
    grad_w = _grad_weight(cx, grad, x, weight, stride, padding, dilation, groups)
    axes = (0, *range(2, 2 + rank))
    grad_b = cx.reduce("sum", grad, axes)
    found = (grad_x, grad_w, grad_b)
    return tuple(g if wanted else None for g, wanted in zip(found, mask, strict=True))


def _grad_input(
    cx: Context, grad: Node, x: Node, weight: Node, stride: Ints, padding: Ints, dilation: Ints,
    groups: int,
) -> Node:  # fmt: skip
    extra: list[Any] = []
    for i, (s, p, d) in enumerate(zip(stride, padding, dilation, strict=True)):
        reached = (grad.shape[2 + i] - 1) * s - 2 * p + d * (weight.shape[2 + i] - 1) + 1
        extra.append(x.shape[2 + i] - reached)
    return _transposed(cx, grad, weight, stride, padding, dilation, extra, groups)


def _grad_weight(
    cx: Context, grad: Node, x: Node, weight: Node, stride: Ints, padding: Ints, dilation: Ints,
    groups: int,
) -> Node:  # fmt: skip
    """Batch is contracted: images become `[g * c? , n]` and gradients the windows."""
    rank = x.tensor.rank - 2
    n, channels = x.shape[0], x.shape[1]
    spatial = tuple(range(2, 2 + rank))
    per_group = channels // groups
    # [n, (g c), s] -> [c, (g n), s]
    split = cx.reshape(x, (n, groups, per_group, *x.shape[2:]))
    images = cx.transpose(split, (2, 1, 0, *(a + 1 for a in spatial)))
    images = cx.reshape(images, (per_group, groups * n, *x.shape[2:]))
    # [n, (g o), t] -> [(g o), n, t]
    windows = cx.transpose(grad, (1, 0, *spatial))
    high: list[Any] = []
    for i, (s, p, d) in enumerate(zip(stride, padding, dilation, strict=True)):
        span = (grad.shape[2 + i] - 1) * s + 1
        wanted = (weight.shape[2 + i] - 1) * d + span
        high.append(wanted - x.shape[2 + i] - p)
    # the gradient's step is the stride, the taps' step is the dilation
    y = _conv(cx, images, windows, dilation, padding, high, dilation=stride, groups=groups)
    return cx.transpose(y, (1, 0, *spatial))


# ---- pooling: one slice for each tap, axis by axis


def _window_sizes(x: Node, rank: int, out: TensorType) -> None:
    _static(x)
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
    """The operand padded (or cropped) to just what the windows read."""
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
        _window_sizes(x, rank, want)
        kernel, padding, dilation = (_each(v, rank) for v in (kernel, padding, dilation))
        stride = _each(stride, rank) if len(stride) else kernel
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
    """Flat position of each window's first maximum: the smallest position that holds it."""
    size = math.prod(x.shape[-rank:])
    counts = best.shape[-rank:]
    first = cx.full(size, TensorType(I64, best.shape))
    lead = x.tensor.rank - rank
    for tap in _grid(kernel):
        part, place = padded, None
        for i, k in enumerate(tap):
            start = k * dilation[i]
            last = start + (counts[i] - 1) * stride[i] + 1
            part = cx.slice(part, lead + i, start, last, stride[i])
            line = cx.elementwise("mul", cx.iota(best.shape, lead + i), stride[i])
            line = cx.elementwise("add", line, start - padding[i])
            inner = math.prod(x.shape[lead + i + 1 :])
            line = cx.elementwise("mul", line, inner)
            place = line if place is None else cx.elementwise("add", place, line)
        holds = cx.elementwise("eq", part, best)
        if x.dtype.is_float:
            holds = cx.elementwise("or", holds, cx.elementwise("isnan", part))
        assert place is not None
        first = cx.elementwise("min", first, cx.select(holds, place, size, I64))
    return cx.elementwise("min", first, size - 1)


def _grid(kernel: Ints) -> list[tuple[int, ...]]:
    points: list[tuple[int, ...]] = [()]
    for size in kernel:
        points = [(*p, k) for p in points for k in range(size)]
    return points


for _rank in (2, 3):
    _max_pool(_rank)


@lowers("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def _max_pool_backward(cx: Context, grad: Node, x: Node, *rest: Any) -> Node:
    places = rest[-1]
    rank = 3 if "pool3d" in cx.name else 2
    lead = x.shape[: x.tensor.rank - rank]
    size = math.prod(x.shape[-rank:])
    flat = cx.full(0, x.tensor.with_shape((math.prod(lead), size)))
    count = math.prod(grad.shape[-rank:])
    places = cx.reshape(places, (math.prod(lead), count))
    updates = cx.reshape(grad, (math.prod(lead), count))
    rows = cx.iota([math.prod(lead)], 0)
    out = cx.b.scatter(flat, rows, places, updates, rule="a! b!, i, i k, i k -> a! b!", kind="add")
    return cx.reshape(out, x.shape)


def _average_pool(rank: int) -> None:
    @lowers(f"avg_pool{rank}d.default")
    def lower(
        cx: Context, x: Node, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Node:  # fmt: skip
        want: TensorType = cx.want
        _window_sizes(x, rank, want)
        kernel, padding = _each(kernel, rank), _each(padding, rank)
        stride = _each(stride, rank) if len(stride) else kernel
        counts, ones = want.shape[-rank:], (1,) * rank
        out: DType = x.dtype
        x = cx.cast(x, wide(out))
        padded = _cover(cx, x, rank, kernel, stride, padding, ones, counts, 0)
        total = _pool(cx, "add", padded, rank, kernel, stride, ones, counts)
        divisor = _divisors(
            cx, x, total, rank, (kernel, stride, padding), count_include_pad, divisor_override
        )
        return cx.cast(cx.elementwise("div", total, divisor, dtype=total.dtype), out)


for _rank in (1, 2, 3):
    _average_pool(_rank)


def _divisors(
    cx: Context, x: Node, total: Node, rank: int, window: tuple[Ints, Ints, Ints],
    include_pad: bool, override: int | None,
) -> Node | float:  # fmt: skip
    """How many elements each window averages."""
    kernel, stride, padding = window
    if override is not None:
        return float(override)
    result: Node | None = None
    even = True
    for i in range(rank):
        size, count = _whole(x.shape[-rank + i]), _whole(total.shape[-rank + i])
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
    _window_sizes(x, rank, want)
    pairs = list(zip(x.shape[-rank:], want.shape[-rank:], strict=True))
    if any(not o or i % o for i, o in pairs):
        return _adaptive_windows(cx, x, rank, want)
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


def _adaptive_windows(cx: Context, x: Node, rank: int, want: TensorType) -> Node:
    """Windows of several sizes: one mean for each position, axis by axis."""
    out: DType = x.dtype
    x = cx.cast(x, wide(out))
    for i in range(rank):
        axis = x.tensor.rank - rank + i
        size, count = x.shape[axis], want.shape[axis]
        if not count:
            return cx.full(0, want)
        parts: list[Node] = []
        for k in range(count):
            start, end = k * size // count, -(-(k + 1) * size // count)
            total = cx.reduce("sum", cx.slice(x, axis, start, end), [axis], keep=True)
            parts.append(cx.elementwise("div", total, float(end - start)))
        x = cx.concat(parts, axis)
    return cx.cast(x, out)


@lowers("_adaptive_avg_pool2d_backward.default")
def _adaptive_average_backward(cx: Context, grad: Node, x: Node) -> Node:
    _window_sizes(x, 2, grad.tensor)
    pairs = list(zip(x.shape[-2:], grad.shape[-2:], strict=True))
    if any(not o or i % o for i, o in pairs):
        raise NotLowered("adaptive pooling with windows of several sizes")
    (h, oh), (w, ow) = pairs
    lead = grad.shape[:-2]
    share = cx.elementwise("div", grad, float((h // oh) * (w // ow)))
    share = cx.reshape(share, (*lead, oh, 1, ow, 1))
    return cx.reshape(cx.broadcast(share, (*lead, oh, h // oh, ow, w // ow)), x.shape)


@lowers("avg_pool2d_backward.default")
def _average_backward(
    cx: Context, grad: Node, x: Node, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Node:  # fmt: skip
    _window_sizes(x, 2, grad.tensor)
    kernel, padding = _each(kernel, 2), _each(padding, 2)
    stride = _each(stride, 2) if len(stride) else kernel
    window = (kernel, stride, padding)
    divisor = _divisors(cx, x, grad, 2, window, count_include_pad, divisor_override)
    share = cx.elementwise("div", grad, divisor, dtype=grad.dtype)
    lead = x.tensor.rank - 2
    for i in range(2):
        share = _spread_axis(
            cx, share, lead + i, x.shape[lead + i], kernel[i], stride[i], padding[i]
        )
    return share


def _spread_axis(
    cx: Context, grad: Node, axis: int, size: Any, kernel: int, stride: int, padding: int
) -> Node:
    """Each element to every position of its window: one shifted copy for each tap."""
    count = _whole(grad.shape[axis])
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
                grad, cx.const(0, grad.dtype), low=tuple(low), high=tuple(high), interior=tuple(gap)
            )
        )
    total = reduce(lambda a, b: cx.elementwise("add", a, b), parts)
    low, high = list(zeros), list(zeros)
    low[axis], high[axis] = -padding, size - (span - padding)
    return cx.pad(total, low, high, 0)
