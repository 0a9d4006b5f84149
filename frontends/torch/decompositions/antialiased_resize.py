"""Resizing of images with antialiasing: two products with tables of weights, one for each axis.

A row of a table has the weights of the source pixels that one target pixel reads. A filter gives
them by their distances from the target's center. If the image shrinks, the filter is as many times
wider as the image is smaller. The gradient is the product with the transposed tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_SHARPNESS = -0.5  # of the cubic filter; R. Keys, "Cubic Convolution Interpolation", 1981


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    a = _SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _lanczos(x: Tensor) -> Tensor:
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), 0)


# filters, and how many source pixels they reach on each side if the image does not shrink
_FILTERS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_cubic, 2),
    "lanczos": (_lanczos, 3),
}


def _table(
    name: str, source: Any, target: Any, align_corners: bool, scale: float | None, like: Tensor
) -> Tensor:
    """Returns the weights, target x source pixels, in the dtype of `like`.

    Args:
        scale: target pixels for each source pixel, if the caller gave it.
    """
    apply, reach = _FILTERS[name]
    if align_corners:
        step = (source - 1) / (target - 1) if target > 1 else 0.0
    else:
        step = 1 / scale if scale else source / target
    width = max(step, 1.0)
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
    center = step * (torch.arange(target, **options) + 0.5)
    first = (center - reach * width + 0.5).trunc().clamp(min=0)
    end = (center + reach * width + 0.5).trunc().clamp(max=source)
    pixel = torch.arange(source, **options)
    distance = (pixel + 0.5 - center[:, None]).abs() / width
    is_read = (pixel >= first[:, None]) & (pixel < end[:, None])
    weights = torch.where(is_read, apply(distance), 0)
    return weights / weights.sum(1, keepdim=True)


def _tables(
    name: str,
    sources: Sequence[Any],
    targets: Sequence[Any],
    align_corners: bool,
    scales: Sequence[float | None],
    like: Tensor,
) -> list[Tensor]:
    return [
        _table(name, source, target, align_corners, scale, like)
        for source, target, scale in zip(sources, targets, scales, strict=True)
    ]


def resize(
    name: str,
    x: Tensor,
    output_size: Sequence[Any],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    """Resizes the last two axes of `x[n, c, h, w]`. 16-bit floats are resized in f32."""
    if not x.is_floating_point():
        return NotImplemented  # torch rounds weights of bytes to integers
    wide = x.float() if x.dtype.itemsize < 4 else x
    scales = (scales_h, scales_w)
    rows, columns = _tables(name, x.shape[2:], output_size, align_corners, scales, wide)
    return (rows @ (wide @ columns.T)).to(x.dtype)


def resize_backward(
    name: str,
    grad: Tensor,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    """Returns the gradient of the image; see `resize` for the arguments."""
    wide = grad.float() if grad.dtype.itemsize < 4 else grad
    scales = (scales_h, scales_w)
    rows, columns = _tables(name, input_size[2:], output_size, align_corners, scales, wide)
    return (rows.T @ (wide @ columns)).to(grad.dtype)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {}
    for name in _FILTERS:
        for suffix, fn in (("", resize), ("_backward", resize_backward)):
            op = getattr(aten, f"_upsample_{name}2d_aa{suffix}", None)
            if op is not None:  # older releases of torch have no lanczos
                found[op.default] = partial(fn, name)
    return found


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = _decompositions()
