"""RAFT: optical flow that a recurrent cell refines, from a pyramid of correlations."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, grid_sample, relu, softmax, unfold


class Residual(nn.Module):
    def __init__(self, into: int, out: int, norm: type[nn.Module], stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(into, out, 3, stride, 1), nn.Conv2d(out, out, 3, 1, 1)
        self.norm1, self.norm2 = norm(out), norm(out)
        self.down = None
        if stride > 1:
            self.down = nn.Sequential(nn.Conv2d(into, out, 1, stride), norm(out))

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(self.conv1(x)))
        y = relu(self.norm2(self.conv2(y)))
        return relu((x if self.down is None else self.down(x)) + y)


class Encoder(nn.Module):
    def __init__(self, out: int, norm: type[nn.Module]) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 7, 2, 3), norm(32), nn.ReLU()]
        into = 32
        for width, stride in ((32, 1), (48, 2), (64, 2)):
            layers += [Residual(into, width, norm, stride), Residual(width, width, norm, 1)]
            into = width
        self.layers = nn.Sequential(*layers, nn.Conv2d(into, out, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class GRU(nn.Module):
    """A convolutional cell that goes along rows, then along columns."""

    def __init__(self, hidden: int, into: int) -> None:
        super().__init__()
        both = hidden + into
        self.z1, self.r1, self.q1 = (
            nn.Conv2d(both, hidden, (1, 5), padding=(0, 2)) for _ in range(3)
        )
        self.z2, self.r2, self.q2 = (
            nn.Conv2d(both, hidden, (5, 1), padding=(2, 0)) for _ in range(3)
        )

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        for z, r, q in ((self.z1, self.r1, self.q1), (self.z2, self.r2, self.q2)):
            hx = torch.cat([h, x], 1)
            update, reset = torch.sigmoid(z(hx)), torch.sigmoid(r(hx))
            new = torch.tanh(q(torch.cat([reset * h, x], 1)))
            h = (1 - update) * h + update * new
        return h


class Update(nn.Module):
    def __init__(self, hidden: int, context: int, planes: int) -> None:
        super().__init__()
        self.corr1, self.corr2 = nn.Conv2d(planes, 96, 1), nn.Conv2d(96, 64, 3, padding=1)
        self.flow1, self.flow2 = nn.Conv2d(2, 64, 7, padding=3), nn.Conv2d(64, 32, 3, padding=1)
        self.merge = nn.Conv2d(96, 62, 3, padding=1)
        self.gru = GRU(hidden, context + 64)
        self.head = nn.Sequential(
            nn.Conv2d(hidden, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 3, padding=1)
        )
        self.mask = nn.Sequential(
            nn.Conv2d(hidden, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64 * 9, 1)
        )

    def forward(
        self, h: Tensor, context: Tensor, corr: Tensor, flow: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        c = relu(self.corr2(relu(self.corr1(corr))))
        f = relu(self.flow2(relu(self.flow1(flow))))
        motion = torch.cat([relu(self.merge(torch.cat([c, f], 1))), flow], 1)
        h = self.gru(h, torch.cat([context, motion], 1))
        return h, 0.25 * self.mask(h), self.head(h)


class RAFT(nn.Module):
    def __init__(self, steps: int = 12, levels: int = 3, radius: int = 3) -> None:
        super().__init__()
        self.steps, self.levels, self.radius, self.hidden = steps, levels, radius, 48
        self.features = Encoder(64, nn.InstanceNorm2d)
        self.context = Encoder(self.hidden + 48, nn.BatchNorm2d)
        self.update = Update(self.hidden, 48, levels * (2 * radius + 1) ** 2)

    def pyramid(self, a: Tensor, b: Tensor) -> list[Tensor]:
        n, c, h, w = a.shape
        corr = torch.einsum("nci,ncj->nij", a.flatten(2), b.flatten(2)) / c**0.5
        planes = [corr.reshape(n * h * w, 1, h, w)]
        for _ in range(self.levels - 1):
            planes.append(avg_pool2d(planes[-1], 2, ceil_mode=True))
        return planes

    def lookup(self, planes: list[Tensor], at: Tensor) -> Tensor:
        n, _, h, w = at.shape
        r = self.radius
        span = torch.arange(-r, r + 1, dtype=at.dtype, device=at.device)
        delta = torch.stack(torch.meshgrid(span, span, indexing="ij"), -1)[None]
        center = at.permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2)
        found: list[Tensor] = []
        for level, plane in enumerate(planes):
            grid = center / 2**level + delta
            high, wide = plane.shape[-2:]
            x, y = 2 * grid[..., :1] / (wide - 1) - 1, 2 * grid[..., 1:] / max(high - 1, 1) - 1
            got = grid_sample(plane, torch.cat([x, y], -1), align_corners=True)
            found.append(got.view(n, h, w, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2)

    def upsample(self, flow: Tensor, mask: Tensor) -> Tensor:
        n, _, h, w = flow.shape
        mask = softmax(mask.view(n, 1, 9, 8, 8, h, w), 2)
        near = unfold(8 * flow, 3, padding=1).view(n, 2, 9, 1, 1, h, w)
        return (mask * near).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * h, 8 * w)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        n, _, height, width = first.shape
        a, b = self.features(torch.cat([first, second])).chunk(2)
        planes = self.pyramid(a, b)
        h, context = self.context(first).split([self.hidden, 48], 1)
        h, context = torch.tanh(h), relu(context)
        ys, xs = torch.meshgrid(
            torch.arange(height // 8, dtype=first.dtype, device=first.device),
            torch.arange(width // 8, dtype=first.dtype, device=first.device),
            indexing="ij",
        )
        start = torch.stack([xs, ys])[None].expand(n, -1, -1, -1)
        at, mask = start, None
        for _ in range(self.steps):
            corr = self.lookup(planes, at)
            h, mask, delta = self.update(h, context, corr, at - start)
            at = at + delta
        assert mask is not None
        return self.upsample(at - start, mask)


def raft() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Twelve steps on a pair of images of 128 x 160."""
    return RAFT().eval(), (torch.randn(1, 3, 128, 160), torch.randn(1, 3, 128, 160))
