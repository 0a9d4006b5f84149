"""A normalizing flow of couplings by rational-quadratic splines."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softmax, softplus

LEAST = 1e-3


def spline(
    x: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor, bound: float
) -> tuple[Tensor, Tensor]:
    """A monotonic map of [-bound, bound], the identity outside, and its log derivative."""
    bins = widths.shape[-1]
    inside = (x >= -bound) & (x <= bound)
    slopes = pad(slopes, (1, 1), value=math.log(math.exp(1 - LEAST) - 1))
    slopes = LEAST + softplus(slopes)

    def knots(raw: Tensor) -> tuple[Tensor, Tensor]:
        share = LEAST + (1 - LEAST * bins) * softmax(raw, -1)
        ends = pad(torch.cumsum(share, -1), (1, 0)) * 2 * bound - bound
        ends = torch.cat(
            [
                torch.full_like(ends[..., :1], -bound),
                ends[..., 1:-1],
                torch.full_like(ends[..., :1], bound),
            ],
            -1,
        )
        return ends, ends[..., 1:] - ends[..., :-1]

    xs, widths = knots(widths)
    ys, heights = knots(heights)
    clipped = x.clamp(-bound, bound)
    index = ((clipped[..., None] >= xs).sum(-1) - 1).clamp(0, bins - 1)[..., None]

    def pick(values: Tensor) -> Tensor:
        return values.gather(-1, index)[..., 0]

    x0, w, y0, h = pick(xs), pick(widths), pick(ys), pick(heights)
    slope, d0, d1 = pick(heights / widths), pick(slopes), pick(slopes[..., 1:])
    theta = (clipped - x0) / w
    mixed = theta * (1 - theta)
    top = h * (slope * theta**2 + d0 * mixed)
    bottom = slope + (d0 + d1 - 2 * slope) * mixed
    y = y0 + top / bottom
    rise = slope**2 * (d1 * theta**2 + 2 * slope * mixed + d0 * (1 - theta) ** 2)
    log = torch.log(rise) - 2 * torch.log(bottom)
    return torch.where(inside, y, x), torch.where(inside, log, torch.zeros_like(log))


class Coupling(nn.Module):
    """One half of the features decides the spline of the other."""

    def __init__(self, features: int, hidden: int, bins: int, is_odd: bool) -> None:
        super().__init__()
        self.bins = bins
        order = torch.arange(features)
        self.register_buffer("kept", order[order % 2 == is_odd])
        self.register_buffer("moved", order[order % 2 != is_odd])
        out = len(self.moved) * (3 * bins - 1)
        self.net = nn.Sequential(
            nn.Linear(len(self.kept), hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, out),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x[:, self.kept], x[:, self.moved]
        params = self.net(kept).view(x.shape[0], moved.shape[1], -1)
        widths, heights, slopes = params.split([self.bins, self.bins, self.bins - 1], -1)
        moved, log = spline(moved, widths, heights, slopes, 3.0)
        y = torch.empty_like(x)
        y[:, self.kept], y[:, self.moved] = kept, moved
        return y, log.sum(-1)


class SplineFlow(nn.Module):
    def __init__(self, features: int = 8, hidden: int = 64, bins: int = 8, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Coupling(features, hidden, bins, bool(i % 2)) for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, log = layer(x)
            total = total + log
        normal = -0.5 * (x**2 + math.log(2 * math.pi)).sum(-1)
        return normal + total


def spline_flow() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Six couplings of eight features, and 256 samples."""
    return SplineFlow().eval(), (torch.randn(256, 8),)
