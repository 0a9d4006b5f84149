"""Lowerings of `im2col` and `col2im`, which `torch.nn.Unfold` and `Fold` call."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.frontends.torch.aten.lowering import Context, NotLowered, lowers, wide
from stack.frontends.torch.lowerings.pool import grid_points
from stack.ir.node import Node

MOST_COVERS = 64  # windows that cover an element: a sum has one term for each


def _grid(
    sizes: Sequence[object], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> list[int]:  # fmt: skip
    """Returns the number of windows along both axes of an image. Raises NotLowered for symbolic
    sizes."""
    grid: list[int] = []
    for size, k, d, p, s in zip(sizes, kernel, dilation, padding, stride, strict=True):
        if not isinstance(size, int):
            raise NotLowered("windows of an image of symbolic sizes")
        grid.append((size + 2 * p - (k - 1) * d - 1) // s + 1)
    return grid


@lowers("im2col.default")
def _im2col(
    cx: Context, x: Node, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Node:  # fmt: skip
    """From `[..., C, H, W]` to `[..., C * taps, windows]`."""
    lead = x.tensor.rank - 2
    grid = _grid(x.shape[lead:], kernel, dilation, padding, stride)
    if not math.prod(grid):
        raise NotLowered("an image without windows")
    edges = [0] * lead + [*padding]
    taps = cx.b.unfold(
        cx.pad(x, edges, edges, 0), axis=lead, window=tuple(kernel), stride=tuple(stride),
        dilation=tuple(dilation),
    )  # fmt: skip
    order = [*range(lead), lead + 2, lead + 3, lead, lead + 1]
    return cx.reshape(cx.transpose(taps, order), cx.want.shape)


@lowers("col2im.default")
def _col2im(
    cx: Context, x: Node, sizes: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Node:  # fmt: skip
    """From `[..., C * taps, windows]` to `[..., C, H, W]`: adds the windows that cover an element.

    The taps of a window are cut into blocks of `stride`. A block of one window meets the next block
    of the window before it, so one array is added for each block.
    """
    grid = _grid(sizes, kernel, dilation, padding, stride)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    blocks = [-(-r // s) for r, s in zip(reach, stride, strict=True)]
    if math.prod(blocks) > MOST_COVERS:
        raise NotLowered(f"each element is in up to {math.prod(blocks)} windows")
    outer = cx.want.shape[:-2]
    lead = len(outer)
    taps = cx.cast(cx.reshape(x, [*outer, *kernel, *grid]), wide(x.dtype))
    ends = [n * s - r for n, s, r in zip(blocks, stride, reach, strict=True)]
    apart = [d - 1 for d in dilation]
    if any((*ends, *apart)):
        low, high, inner = ([0] * lead + [*v] + [0, 0] for v in ([0, 0], ends, apart))
        zero = cx.scalar(0, taps.dtype)
        taps = cx.b.pad(taps, zero, low=tuple(low), high=tuple(high), interior=tuple(inner))
    (a, b), (s, t), (h, w) = blocks, stride, grid
    taps = cx.reshape(taps, [*outer, a, s, b, t, h, w])
    total: Node | None = None
    for i, j in grid_points(blocks):
        block = cx.slice(cx.slice(taps, lead, i, i + 1), lead + 2, j, j + 1)
        block = cx.reshape(block, [*outer, s, t, h, w])
        before, after = [0] * (lead + 2) + [i, j], [0] * (lead + 2) + [a - 1 - i, b - 1 - j]
        block = cx.pad(block, before, after, 0)
        total = block if total is None else cx.elementwise("add", total, block)
    assert total is not None
    order = [*range(lead), lead + 2, lead, lead + 3, lead + 1]
    made = [(h + a - 1) * s, (w + b - 1) * t]
    image = cx.reshape(cx.transpose(total, order), [*outer, *made])
    crop, rest = (
        [-p for p in padding],
        [m + p - n for m, p, n in zip(sizes, padding, made, strict=True)],
    )
    image = cx.pad(image, [0] * lead + crop, [0] * lead + rest, 0)
    return cx.cast(image, x.dtype)
