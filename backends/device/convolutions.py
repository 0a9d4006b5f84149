"""Convolutions on a device: cuDNN's, selected by torch, with the precision of the node."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from stack.frontends.torch.replay.conv import Call, Window, library
from stack.ir.node import Node

Tensor = torch.Tensor


def convolution_call(node: Node) -> Call:
    """Returns the torch function that computes a `conv` node."""
    if node.dtype.kind not in "fc":
        return _integers
    rounds = node.attrs.get("precision") == "tf32"

    def call(x: Tensor, w: Tensor, window: Window) -> Tensor:
        if x.device.type == "cpu":
            return library(x, w, window)
        cudnn: Any = torch.backends.cudnn
        modes = (cudnn.benchmark, cudnn.deterministic, cudnn.enabled, rounds)
        return torch.ops.aten._convolution.default(x, w, None, *window, *modes)

    return call


def _integers(x: Tensor, w: Tensor, window: Window) -> Tensor:
    return integer_conv(x, w, window.stride, window.dilation, window.groups)


def integer_conv(
    x: Tensor, w: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """An integer convolution without padding, as a sum over the positions of the window."""
    batch, outs, depth = x.shape[0], w.shape[0], w.shape[1]
    window = w.shape[2:]
    sizes = [
        (size - gap * (extent - 1) - 1) // step + 1
        for size, extent, step, gap in zip(x.shape[2:], window, stride, dilation, strict=True)
    ]
    parts = x.reshape(batch, groups, 1, depth, *x.shape[2:])
    weights = w.reshape(groups, outs // groups, depth, *window)
    total = torch.zeros((batch, groups, outs // groups, *sizes), dtype=x.dtype, device=x.device)
    for place in itertools.product(*map(range, window)):
        cuts = [
            slice(p * gap, p * gap + (size - 1) * step + 1, step)
            for p, size, step, gap in zip(place, sizes, stride, dilation, strict=True)
        ]
        factor = weights[(..., *place)].reshape(groups, outs // groups, depth, *[1] * len(sizes))
        total += (parts[(..., *cuts)] * factor).sum(3, dtype=x.dtype)
    return total.reshape(batch, outs, *sizes)
