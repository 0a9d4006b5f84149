"""Arguments whose elements are apart in memory: read where they lie, through windows of it.

Memory from the first element to the last is a flat array. Each stride, from the largest on, walks
it in windows of what the smaller ones span; so any strides are one chain of `unfold`, which stays
inside of what the argument owns. Kernels read through it as through any other movement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stack.frontends.aten import Context
from stack.ir.node import Node

Axis = tuple[int, int]  # size, elements between neighbours


@dataclass(frozen=True)
class Apart:
    """Sizes and strides of a tensor, in elements: no size is 0, no stride negative."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        return _span(list(zip(self.shape, self.strides, strict=True)))

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """The memory of a tensor that lies so, `[span]`, from its first element on."""
        return tensor.as_strided((self.span,), (1,))

    def read(self, cx: Context, flat: Node) -> Node:
        """The tensor, of what `flat` gives."""
        axes = range(len(self.shape))
        alike = [i for i in axes if not self.strides[i] or self.shape[i] == 1]
        order = sorted((i for i in axes if i not in alike), key=lambda i: -self.strides[i])
        x = _walked(cx, flat, _joined([(self.shape[i], self.strides[i]) for i in order]))
        x = cx.reshape(x, [self.shape[i] for i in order])
        x = cx.transpose(x, [order.index(i) for i in sorted(order)])
        return cx.stretch(x, self.shape, alike)


def apart(tensor: torch.Tensor) -> Apart | None:
    """How a tensor lies; None where a size or a stride is no number, or there are no elements.

    Nor where rows repeat one number: sums along them have kernels for arrays that have lanes.
    """
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    is_known = all(isinstance(v, int) for v in (*shape, *strides))
    repeats = shape[-1:] > (1,) and strides[-1] == 0
    return Apart(shape, strides) if is_known and 0 not in shape and not repeats else None


def _span(axes: Sequence[Axis]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in axes)


def _joined(axes: Sequence[Axis]) -> list[Axis]:
    """Axes from the largest stride on; neighbours that are one run of steps are one."""
    made: list[Axis] = []
    for size, stride in axes:
        if made and made[-1][1] == size * stride:
            size *= made.pop()[0]
        made.append((size, stride))
    return made


def _walked(cx: Context, flat: Node, axes: Sequence[Axis]) -> Node:
    """A flat array along axes, the innermost window by its own stride."""
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
