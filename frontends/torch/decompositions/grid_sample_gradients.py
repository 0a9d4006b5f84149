"""Backward pass of `grid_sample` of images: gradients of the image and of the grid.

A sample reads pixels with a weight for the column and one for the row. The image's gradient sums
the weights of each pixel; the grid's gradient uses the derivatives of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stack.frontends.torch.decompositions.grid_sample import (
    BICUBIC,
    BORDER,
    NEAREST,
    ZEROS,
    cubic,
    cubic_slopes,
    place_of,
    scale_of,
    within,
)


@dataclass(frozen=True)
class _Tap:
    """A pixel that is read along one axis.

    Attributes:
        number: its index; 0 if it is outside the image.
        inside: true if it is inside.
        weight, slope: its weight, and the derivative of the weight by the coordinate.
    """

    number: Tensor
    inside: Tensor
    weight: Tensor
    slope: Tensor


def _tap(pixel: Tensor, size: int, weight: Tensor, slope: Tensor) -> _Tap:
    inside = (pixel >= 0) & (pixel < size)
    return _Tap(torch.where(inside, pixel.long(), 0), inside, weight, slope)


def grid_sampler_2d_backward(
    grad: Tensor, x: Tensor, grid: Tensor, interpolation: int, padding: int,
    align_corners: bool, output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Computes the gradients of image and grid; see `grid_sampler_2d` for the arguments."""
    if x.device.type != "cpu":
        return NotImplemented
    if x.dtype in (torch.bfloat16, torch.float16):
        found = grid_sampler_2d_backward(
            grad.float(), x.float(), grid.float(), interpolation, padding, align_corners,
            output_mask,
        )  # fmt: skip
        return tuple(None if t is None else t.to(x.dtype) for t in found)
    places = [grid[..., i].unsqueeze(1).expand(-1, x.shape[1], -1, -1) for i in (0, 1)]
    columns, rows = (
        _taps(place, x.shape[-1 - axis], interpolation, padding, align_corners)
        for axis, place in enumerate(places)
    )
    image = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1, 1)
    channel = torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
    grad_x, of_column, of_row = torch.zeros_like(x), 0.0, 0.0
    for row in rows:
        for column in columns:
            inside = column.inside & row.inside
            where = image, channel, row.number, column.number
            if output_mask[0]:
                part = torch.where(inside, grad * column.weight * row.weight, 0.0)
                grad_x = grad_x.index_put(where, part, accumulate=True)
            read = torch.where(inside, grad * x[where], 0.0)
            of_column = of_column + read * column.slope * row.weight
            of_row = of_row + read * column.weight * row.slope
    both = torch.stack([torch.as_tensor(of_column), torch.as_tensor(of_row)], -1)
    return grad_x if output_mask[0] else None, both.sum(1) if output_mask[1] else None


def _taps(
    coordinate: Tensor, size: int, interpolation: int, padding: int, align_corners: bool
) -> list[_Tap]:
    """Returns the pixels that a coordinate reads along an axis; slopes are by the coordinate."""
    place = place_of(coordinate, size, align_corners)
    scale = scale_of(size, align_corners)
    if interpolation == BICUBIC:
        slopes = cubic_slopes(place)
        return [
            _tap(within(pixel, size, padding, align_corners), size, weight, slope * scale)
            for (pixel, weight), slope in zip(cubic(place), slopes, strict=True)
        ]
    inner = within(place, size, padding, align_corners)
    if interpolation == NEAREST:
        return [_tap(inner.round(), size, torch.ones_like(inner), torch.zeros_like(inner))]
    slope = _turns(place, size, padding, align_corners) * scale
    first = inner.floor()
    return [
        _tap(first, size, first + 1 - inner, -slope),
        _tap(first + 1, size, inner - first, slope),
    ]


def _turns(place: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Returns the derivative of `within`: 0 for clamped positions, -1 for reflected ones."""
    if padding == ZEROS:
        return torch.ones_like(place)
    turn = torch.ones_like(place)
    if padding != BORDER:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if span == 0:
            return torch.zeros_like(place)
        is_low = place < low
        away = torch.where(is_low, low - place, place - low)
        is_odd = (away / span).floor().remainder(2) == 1
        turn = torch.where(is_low != is_odd, -turn, turn)
        place = within(place, size, padding, align_corners)
    return torch.where((place > 0) & (place < size - 1), turn, 0.0)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.grid_sampler_2d_backward.default: grid_sampler_2d_backward
}
