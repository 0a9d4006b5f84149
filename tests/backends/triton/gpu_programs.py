"""Programs of rows whose kernels for a GPU are compiled, or run, by tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = Any


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms(x: Tensor, gain: Tensor) -> Tensor:
    y = wide(x)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * gain


def layer(x: Tensor, gain: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, gain)


def ratios(x: Tensor, gain: Tensor) -> Tensor:
    """Two sums of a row, neither of which waits for the other."""
    y = wide(x)
    return (y.exp() / y.exp().sum(-1, keepdim=True) + y / y.abs().sum(-1, keepdim=True)) * gain


def running(axis: int) -> Callable[[Tensor], Tensor]:
    def total(x: Tensor) -> Tensor:
        return x.cumsum(axis)

    return total


def decayed(scores: Tensor, step: Tensor, values: Tensor) -> Tensor:
    """Sums of the earlier values, with weights that decay with their distance."""
    line = torch.arange(scores.shape[-1], device=scores.device)
    gaps = step[:, :, None] - step[:, None, :]
    decays = gaps.masked_fill(line > line[:, None], -torch.inf).exp()
    return (wide(scores) * decays).to(values.dtype) @ values
