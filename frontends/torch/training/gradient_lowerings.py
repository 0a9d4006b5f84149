"""Lowerings of the derivatives of ATen convolution, unfold and cdist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stack.frontends.torch.aten.conv import Ints, conv, each, static, transposed_conv
from stack.frontends.torch.aten.lowering import Context, NotLowered, axis_of, lowers
from stack.ir.dim import Dim
from stack.ir.node import Node


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
        grad_x = conv(cx, grad, weight, stride, padding, padding, dilation=dilation, groups=groups)
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
    return transposed_conv(cx, grad, weight, stride, padding, dilation, extra, groups)


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
    y = conv(cx, images, windows, dilation, padding, high, dilation=stride, groups=groups)
    return cx.transpose(y, (1, 0, *spatial))


@lowers("unfold_backward.default")
def _unfold_backward(
    cx: Context, grad: Node, sizes: Sequence[Dim], dim: int, size: int, step: int
) -> Node:
    """Computes the overlap-add of windows, split into blocks of `step`.

    Block `j` of window `w` is added to block `w + j`. The windows form one row of blocks for each
    `j`. Rows are padded to one more element than there are result blocks, and the flat array is
    reshaped to rows of exactly that many blocks. This shifts each row one element further to the
    right, so that a sum over rows adds the right blocks.
    """
    axis = axis_of(dim, len(sizes))
    windows, whole = grad.shape[axis], sizes[axis]
    if size == 0 or not isinstance(windows, int) or not isinstance(whole, int):
        raise NotLowered("windows of a symbolic or empty size")
    before, after = grad.shape[:axis], grad.shape[axis + 1 : -1]
    rank, rows = grad.tensor.rank, -(-size // step)
    blocks = windows + rows - 1
    x = cx.pad(grad, [0] * rank, [0] * (rank - 1) + [rows * step - size], 0)
    x = cx.reshape(x, (*x.shape[:-1], rows, step))
    kept = [i for i in range(rank - 1) if i != axis]
    x = cx.transpose(x, [*kept[:axis], rank - 1, axis, rank, *kept[axis:]])
    x = cx.pad(
        x,
        [0] * (rank + 1),
        [blocks + 1 - windows if i == axis + 1 else 0 for i in range(rank + 1)],
        0,
    )
    x = cx.reshape(x, (*before, rows * (blocks + 1), step, *after))
    x = cx.slice(x, axis, 0, rows * blocks)
    x = cx.reduce("sum", cx.reshape(x, (*before, rows, blocks, step, *after)), [axis])
    x = cx.reshape(x, (*before, blocks * step, *after))
    made = min(blocks * step, whole)
    high = [whole - made if i == axis else 0 for i in range(len(sizes))]
    return cx.pad(cx.slice(x, axis, 0, made), [0] * len(sizes), high, 0)


@lowers("_cdist_backward.default")
def _cdist_backward(
    cx: Context, grad: Node, x: Node, y: Node, p: float, distances: Node
) -> Node:  # fmt: skip
    """The derivative by `x[i]` sums over `y[j]`: 0 where the two are equal, as in eager."""
    rows = cx.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    columns = cx.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    gap = cx.elementwise("sub", rows, columns)
    grad, distances = (cx.reshape(v, (*v.shape, 1)) for v in (grad, distances))
    size = cx.elementwise("abs", gap)
    if p == 0:
        part = cx.elementwise("mul", gap, 0.0)
    elif p == 1:
        part = cx.elementwise("sign", gap)
    elif p == math.inf:
        is_most = cx.elementwise("eq", size, distances)
        part = cx.select(is_most, cx.elementwise("sign", gap), 0.0)
    elif p == 2:
        part = cx.elementwise("div", gap, distances)
    else:
        ratio = cx.elementwise("pow", cx.elementwise("div", size, distances), p - 1)
        part = cx.elementwise("mul", cx.elementwise("sign", gap), ratio)
    if p > 1 and p != math.inf:
        part = cx.select(cx.elementwise("eq", distances, 0.0), 0.0, part)
    elif 0 < p < 1:
        part = cx.select(cx.elementwise("eq", gap, 0.0), 0.0, part)
    total = cx.reduce("sum", cx.elementwise("mul", part, grad), [part.tensor.rank - 2])
    return cx.reshape(total, cx.want.shape)
