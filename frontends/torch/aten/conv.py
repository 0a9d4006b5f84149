"""Lowerings of ATen convolution and its derivatives; checks of window sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.frontends.torch.aten.lowering import Context, NotLowered, lowers
from stack.frontends.torch.tensors.precision import conv_precision
from stack.ir.dim import Expr
from stack.ir.node import Node

# integers: windows are static, as `static` and `_window_sizes` check
Ints = Sequence[Any]


def each(values: Ints, rank: int) -> tuple[int, ...]:
    """Expands one number to all spatial axes; several numbers are unchanged."""
    values = tuple(values)
    return values * rank if len(values) == 1 else values


def static(x: Node) -> None:
    """Raise NotLowered if a size of `x` other than the first one is symbolic."""
    if any(isinstance(s, Expr) for s in x.shape[1:]):
        raise NotLowered(f"a window over the symbolic sizes of {x.type}")


def whole(size: Any) -> int:
    """Returns a size. Raises NotLowered unless it is a number."""
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
    stride, padding, dilation = (each(v, rank) for v in (stride, padding, dilation))
    if transposed:
        extra = each(output_padding, rank)
        y = _transposed(cx, x, weight, stride, padding, dilation, extra, groups)
    else:
        y = _conv(cx, x, weight, stride, padding, padding, dilation=dilation, groups=groups)
    if bias is not None:
        y = cx.elementwise("add", y, cx.reshape(bias, (*bias.shape, *(1,) * rank)))
    return y if batched else cx.reshape(y, y.shape[1:])


def _conv(
    cx: Context, x: Node, weight: Node, stride: Ints, low: Ints, high: Ints, *,
    spread: Ints | None = None, dilation: Ints, groups: int, **form: Any,
) -> Node:  # fmt: skip
    rank = x.tensor.rank - 2
    precision = conv_precision(cx.fakes[0]) if cx.fakes else None
    if precision is not None:
        form["precision"] = precision
    return cx.b.conv(
        x, weight, stride=tuple(stride), low=tuple(low), high=tuple(high),
        lhs_dilation=tuple(spread or (1,) * rank), rhs_dilation=tuple(dilation), groups=groups,
        **form,
    )  # fmt: skip


def _transposed(
    cx: Context, x: Node, weight: Node, stride: Ints, padding: Ints, dilation: Ints, extra: Ints,
    groups: int,
) -> Node:  # fmt: skip
    taps = weight.shape[2:]
    reach = [(k - 1) * d for k, d in zip(taps, dilation, strict=True)]
    low = [r - p for r, p in zip(reach, padding, strict=True)]
    high = [lo + e for lo, e in zip(low, extra, strict=True)]
    ones = (1,) * len(taps)
    return _conv(
        cx, x, weight, ones, low, high, spread=stride, dilation=dilation, groups=groups,
        transposed=True,
    )  # fmt: skip


@lowers("convolution_backward.default")
def _convolution_backward(
    cx: Context, grad: Node, x: Node, weight: Node, bias_sizes: Any, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, mask: Sequence[bool],
) -> tuple[Node | None, ...]:  # fmt: skip
    if x.tensor.rank != weight.tensor.rank:
        raise NotLowered("the derivative of a convolution of one image")
    static(x)
    rank = x.tensor.rank - 2
    stride, padding, dilation = (each(v, rank) for v in (stride, padding, dilation))
    if transposed:  # exchange image and gradient of an ordinary convolution
        grad_x = _conv(cx, grad, weight, stride, padding, padding, dilation=dilation, groups=groups)
        grad_w = _grad_weight(cx, x, grad, weight, stride, padding, dilation, groups)
    else:
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
    """Computes the weight's gradient as a convolution of images `[c, g * n]` with `grad`."""
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
    # stride and dilation are exchanged with respect to the forward convolution
    y = _conv(cx, images, windows, dilation, padding, high, dilation=stride, groups=groups)
    return cx.transpose(y, (1, 0, *spatial))
