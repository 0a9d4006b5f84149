"""`grid_sample` of images as on a CPU, for coordinates that are nan, infinite or far outside.

Torch's decomposition treats such coordinates as outside. Eager's CPU kernel returns nan for them
with zero padding, and otherwise reads the first row or column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from stack.frameworks.torch_private import decompositions

_OP = torch.ops.aten.grid_sampler_2d.default
ZEROS, BORDER = 0, 1
NEAREST, BICUBIC = 1, 2
_SHARPNESS = -0.75  # of torch's cubic convolution


def grid_sampler_2d(
    x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool
) -> Tensor:
    """Interpolates images between pixels.

    Args:
        x: `[n, c, h, w]`.
        grid: `[n, rows, columns, 2]`: x and y coordinate of each sample, from -1 to 1.
        interpolation: 0 for bilinear, 1 for nearest, 2 for bicubic.
        padding: values outside: 0 for zeros, 1 for the border, 2 for reflection.
        align_corners: true if -1 and 1 are the centres of the outer pixels, false for their edges.

    Returns:
        `[n, c, rows, columns]`.
    """
    if x.device.type != "cpu":
        table = decompositions()
        return table[_OP](x, grid, interpolation, padding, align_corners)
    if x.dtype in (torch.bfloat16, torch.float16):
        wide = grid_sampler_2d(x.float(), grid.float(), interpolation, padding, align_corners)
        return wide.to(x.dtype)
    # Coordinates are expanded over channels, so that everything fuses into one kernel, which
    # computes coordinates once per row.
    grid = grid.unsqueeze(1).expand(-1, x.shape[1], -1, -1, -1)
    places = [place_of(grid[..., i], x.shape[-1 - i], align_corners) for i in (0, 1)]

    columns, rows = (
        _taps(place, x.shape[-1 - axis], interpolation, padding, align_corners)
        for axis, place in enumerate(places)
    )
    image = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1, 1)
    channel = torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
    read = (x[image, channel, r, c] * (v * w) for r, w in rows for c, v in columns)
    return reduce(add, read)


def _taps(
    place: Tensor, size: int, interpolation: int, padding: int, align_corners: bool
) -> list[tuple[Tensor, Tensor]]:
    """Returns the indices that a position reads along one axis, and their weights."""

    def tap(pixel: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        # outside of the image, index 0 with weight 0, or nan if the weight is nan
        inside = (pixel >= 0) & (pixel < size)
        return torch.where(inside, pixel.long(), 0), torch.where(inside, weight, weight * 0)

    if interpolation == BICUBIC:
        pixels = [(within(pixel, size, padding, align_corners), w) for pixel, w in cubic(place)]
        return [tap(pixel, weight) for pixel, weight in pixels]
    inner = within(place, size, padding, align_corners)
    if interpolation == NEAREST:
        return [tap(inner.round(), torch.ones_like(inner))]
    first = inner.floor()
    second = first + 1
    return [tap(first, second - inner), tap(second, inner - first)]


def place_of(coordinate: Tensor, size: int, align_corners: bool) -> Tensor:
    """Converts a coordinate from -1 to 1 to a pixel position."""
    return coordinate * scale_of(size, align_corners) + (size * 0.5 - 0.5)


def scale_of(size: int, align_corners: bool) -> float:
    """Returns the distance in pixels between coordinates 0 and 1."""
    return size * 0.5 - 0.5 if align_corners else size * 0.5


def within(place: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Moves a position into the image; nan becomes the first pixel and has no gradient."""
    if padding == ZEROS:
        return place
    if padding != BORDER:
        place = _reflected(place, size, align_corners)
    return torch.where(place > 0, torch.where(place < size - 1, place, size - 1.0), 0.0)


def cubic(place: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns the four pixels around a position along one axis, and their weights."""
    first = place.floor()
    near = place - first
    far = 1 - near
    weights = (_outer(near + 1), _inner(near), _inner(far), _outer(far + 1))
    return [(first + i, w) for i, w in enumerate(weights, -1)]


def cubic_slopes(place: Tensor) -> list[Tensor]:
    """Returns the derivatives of the four weights with respect to the position."""
    near = place - place.floor()
    far, a = 1 - near, _SHARPNESS

    def inner(t: Tensor) -> Tensor:
        return (3 * (a + 2) * t - 2 * (a + 3)) * t

    def outer(t: Tensor) -> Tensor:
        return (3 * a * t - 10 * a) * t + 8 * a

    return [outer(near + 1), inner(near), -inner(far), -outer(far + 1)]


def _inner(t: Tensor) -> Tensor:
    """Returns the cubic weight of a pixel at distance `t` from the position, for t below 1."""
    return ((_SHARPNESS + 2) * t - (_SHARPNESS + 3)) * t * t + 1


def _outer(t: Tensor) -> Tensor:
    """Returns the cubic weight of a pixel at distance `t` from the position, for t from 1 to 2."""
    a = _SHARPNESS
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a


def _reflected(place: Tensor, size: int, align_corners: bool) -> Tensor:
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if align_corners and size == 1:
        return torch.zeros_like(place)
    away = torch.where(place < low, low - place, place - low)
    rest = away - (away / (2 * span)).trunc() * (2 * span)
    return torch.where(rest < span, rest, 2 * span - rest) + low


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {_OP: grid_sampler_2d}
