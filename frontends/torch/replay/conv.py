"""Lowers an IR convolution to one call of torch, ordinary or transposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from stack.errors import StackError
from stack.ir.conv_op import as_stored, channels_second, sums_over_images
from stack.ir.node import Node

Tensor = torch.Tensor


class Window(NamedTuple):
    """The parameters of `torch.convolution`."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


Call = Callable[[Tensor, Tensor, Window], Tensor]
_WEIGHT = [False, True, False]  # compute the second of three gradients
_ONE_ROW = {"stride": 1, "low": 0, "high": 0, "lhs_dilation": 1, "rhs_dilation": 1}


def library(x: Tensor, w: Tensor, window: Window) -> Tensor:
    """Calls `torch.convolution`, which picks the kernel."""
    if not x.is_floating_point():
        raise StackError(f"torch has no convolution of {x.dtype}")
    return torch.convolution(x, w, None, *window)


def convolution(node: Node, x: Tensor, w: Tensor, call: Call = library) -> Tensor:
    """Computes a non-empty `conv` node; the channel axis keeps its position."""
    at = node.attrs
    if not 1 <= x.dim() - 2 <= 3:
        raise StackError(f"torch has no convolution over {x.dim() - 2} axes")
    is_line = bool(at.get("channels_last")) and x.dim() == 3
    if is_line:  # torch copies a 1-D input that is channels last, but not an image
        at = {**at, **{k: (v, *at[k]) for k, v in _ONE_ROW.items()}}
        x, w = x.unsqueeze(1), w.unsqueeze(1)
    axes = range(x.dim())
    order = channels_second(axes, at)
    y = _channels_second(node, at, x.permute(order), w.permute(order), call)
    y = y.permute(as_stored(axes, at))
    return y.squeeze(1) if is_line else y


def _channels_second(node: Node, at: Any, x: Tensor, w: Tensor, call: Call) -> Tensor:
    if sums_over_images(node):
        sizes = channels_second(node.shape, node.attrs)[2:]
        y = _weight_gradient(at, x, w, (*[1] * (x.dim() - 2 - len(sizes)), *sizes))
        if y is not None:
            return y
    is_spread = any(d != 1 for d in at["lhs_dilation"])
    is_turned = bool(at.get("transposed"))
    if (is_spread or is_turned) and x.is_floating_point() and all(s == 1 for s in at["stride"]):
        return _transposed(at, x, w if is_turned else turned(w, at["groups"]), call)
    return _plain(at, x, turned(w, at["groups"]) if is_turned else w, call)


def turned(w: Tensor, groups: int) -> Tensor:
    """Returns a convolution's weight as the transposed convolution needs it.

    Taps (kernel positions) are reversed, and channels swapped per group: `[g * a, b, k...]` becomes
    `[g * b, a, k...]`.
    """
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)
    split = split.flip(tuple(range(3, split.dim())))
    return split.reshape(groups * w.shape[1], w.shape[0] // groups, *w.shape[2:])


def _plain(at: Any, x: Tensor, w: Tensor, call: Call) -> Tensor:
    low, high = list(at["low"]), list(at["high"])
    gaps = list(at["lhs_dilation"])
    if any(g != 1 for g in gaps):
        x = _spread(x, gaps)
    none = [0] * len(low)
    if low != high or min(low) < 0 or not x.is_floating_point():
        x, low = padded(x, low, high), none
    dilation, stride = list(at["rhs_dilation"]), list(at["stride"])
    return call(x, w, Window(stride, low, dilation, False, none, at["groups"]))


def _transposed(at: Any, x: Tensor, w: Tensor, call: Call) -> Tensor:
    """Calls torch's transposed convolution; it pads by `k - 1` dilated taps minus `padding`."""
    stride, dilation = list(at["lhs_dilation"]), list(at["rhs_dilation"])
    padding, extra, low, high = [], [], [], []
    sides = zip(at["low"], at["high"], w.shape[2:], stride, dilation, strict=True)
    for lo, hi, taps, step, gap in sides:
        reach = (taps - 1) * gap
        fits = lo <= reach and 0 <= hi - lo < max(step, gap)
        padding.append(reach - lo if fits else 0)
        extra.append(hi - lo if fits else 0)
        low.append(0 if fits else lo - reach)
        high.append(0 if fits else hi - reach)
    y = call(x, w, Window(stride, padding, dilation, True, extra, at["groups"]))
    return padded(y, low, high)


def _weight_gradient(at: Any, x: Tensor, w: Tensor, sizes: Sequence[Any]) -> Tensor | None:
    """Computes a sum over images by torch's kernel for gradients of weights.

    Images are `[c, g n, s...]`, windows `[g o, n, t...]`, and the result is `[g o, c, k...]`.
    Stride and dilation are exchanged in the convolution that this is the gradient of. None if that
    convolution would not end with the last window.
    """
    groups = at["groups"]
    stride, dilation, low = list(at["rhs_dilation"]), list(at["stride"]), list(at["low"])
    sides = zip(x.shape[2:], w.shape[2:], sizes, stride, dilation, low, strict=True)
    ends = all(
        (s + 2 * lo - gap * (k - 1) - 1) // step + 1 == t for s, t, k, step, gap, lo in sides
    )
    if not ends or min(low) < 0 or not x.is_floating_point():
        return None
    images = x.reshape(x.shape[0], groups, -1, *x.shape[2:]).transpose(0, 2)
    images = images.reshape(images.shape[0], -1, *x.shape[2:])
    weight = x.new_empty(1).expand(w.shape[0], x.shape[0], *sizes)  # only its shape is used
    window = (stride, low, dilation, False, [0] * len(low), groups)
    values = w.transpose(0, 1)
    if groups > 1 and values.is_cuda and values.itemsize == 2:
        values, images = _channels_last(values), _channels_last(images)
    grads = torch.ops.aten.convolution_backward.default(
        values, images, weight, None, *window, _WEIGHT
    )
    return grads[1].transpose(0, 1)


def _channels_last(x: Tensor) -> Tensor:
    """Copies images and volumes to the layout that kernels for groups on tensor cores read."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


def padded(x: Tensor, low: Sequence[int], high: Sequence[int]) -> Tensor:
    """Pads the spatial axes with zeros; negative amounts crop."""
    pads = [v for pair in reversed(list(zip(low, high, strict=True))) for v in pair]
    return F.pad(x, pads) if any(pads) else x


def _spread(x: Tensor, gaps: Sequence[int]) -> Tensor:
    """Inserts zeros between elements of the spatial axes, which are then `gap` positions apart."""
    for axis, gap in enumerate(gaps, 2):
        zeros = [torch.zeros_like(x)] * (gap - 1)
        wide = torch.stack([x, *zeros], dim=axis + 1).flatten(axis, axis + 1)
        x = wide.narrow(axis, 0, (x.shape[axis] - 1) * gap + 1)
    return x
