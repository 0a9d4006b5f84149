"""Strided arguments that are not dense: read in place through windows, without a copy.

The memory from the first element to the last is a flat array. Each stride, from the largest on, is
a window over the span of the smaller ones. So any strides become one chain of `unfold`, which stays
inside the memory of the argument. Kernels read it like any other movement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from stack.frontends.torch.aten.lowering import Context
from stack.frontends.torch.importer.border import Order, physical_order
from stack.ir.node import Node

Axis = tuple[int, int]  # size, stride in elements
Part = tuple[Any, Any, Any]  # sizes, strides and storage offset of a view, or nodes for them


@dataclass(frozen=True)
class Apart:
    """Sizes and strides of a tensor, in elements. Sizes are not 0, strides not negative."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Number of elements in memory from the first element to the last one, with gaps."""
        return _span(list(zip(self.shape, self.strides, strict=True)))

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the memory of such a tensor as a flat view `[span]`, from its first element."""
        return tensor.as_strided((self.span,), (1,))

    def read(self, cx: Context, flat: Node) -> Node:
        """Builds the tensor with these sizes and strides from its flat memory."""
        axes = range(len(self.shape))
        alike = [i for i in axes if not self.strides[i] or self.shape[i] == 1]
        order = sorted((i for i in axes if i not in alike), key=lambda i: -self.strides[i])
        x = _walked(cx, flat, _joined([(self.shape[i], self.strides[i]) for i in order]))
        x = cx.reshape(x, [self.shape[i] for i in order])
        x = cx.transpose(x, [order.index(i) for i in sorted(order)])
        return cx.stretch(x, self.shape, alike)


def apart(tensor: torch.Tensor) -> Apart | None:
    """Returns sizes and strides of a tensor; None if one is symbolic or the tensor is empty.

    Also None if the innermost axis has stride 0 (a repeated number): kernels for sums along it
    expect contiguous arrays.
    """
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    is_known = all(isinstance(v, int) for v in (*shape, *strides))
    repeats = shape[-1:] > (1,) and strides[-1] == 0
    return Apart(shape, strides) if is_known and 0 not in shape and not repeats else None


def storage_until(tensor: torch.Tensor, parts: Sequence[Part]) -> torch.Tensor:
    """Returns the storage of a tensor as a flat view, from its start to the end of the tensor and
    of all parts, which are not empty."""
    own: Part = (tensor.shape, tensor.stride(), tensor.storage_offset())
    ends = [offset + _span([*zip(shape, strides)]) for shape, strides, offset in (own, *parts)]
    return tensor.as_strided((reduce(torch.sym_max, ends),), (1,), 0)


def memory_order(value: torch.Tensor) -> Order | Apart | None:
    """Returns the memory layout of a parameter; None if the tensor is copied to row-major first.

    A tensor that is not dense is passed without a copy only if it is a float tensor on a CPU.
    Indices are always copied: they are checked before a call, and the gaps contain no indices.
    """
    order = physical_order(value)
    is_read_there = value.device.type == "cpu" and value.dtype.is_floating_point
    return apart(value) if order is None and is_read_there else order


def _span(axes: Sequence[Axis]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in axes)


def _joined(axes: Sequence[Axis]) -> list[Axis]:
    """Merges axes, given with descending strides, if two neighbours are one axis in memory."""
    made: list[Axis] = []
    for size, stride in axes:
        if made and made[-1][1] == size * stride:
            size *= made.pop()[0]
        made.append((size, stride))
    return made


def _walked(cx: Context, flat: Node, axes: Sequence[Axis]) -> Node:
    """Reads a flat array along axes of given sizes and strides, by nested windows."""
    if len(axes) < 2:
        step = axes[0][1] if axes else 1
        return cx.slice(flat, 0, 0, flat.shape[0], step)
    x = flat
    for place, (_, stride) in enumerate(axes[:-1]):
        inner = axes[place + 1 :]
        size, between = inner[0] if len(inner) == 1 else (_span(inner), 1)
        attrs = {"window": (size,), "stride": (stride,), "dilation": (between,)}
        x = cx.b.unfold(x, axis=place, **attrs)
    return x
