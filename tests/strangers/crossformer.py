"""CrossFormer: patches of several scales, then attention to near and to distant tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PositionBias(nn.Module):
    """An MLP from an offset to the bias of each head."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(2, dim)]
        for out in (dim, dim, heads):
            layers += [nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, out)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, group: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias = PositionBias(dim // 16, heads)
        span = torch.arange(1 - group, group)
        offsets = torch.stack(torch.meshgrid(span, span, indexing="ij")).flatten(1).t()
        self.register_buffer("offsets", offsets.float())
        grid = torch.arange(group)
        places = torch.stack(torch.meshgrid(grid, grid, indexing="ij")).flatten(1)
        relative = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + group - 1
        self.register_buffer("index", relative[..., 0] * (2 * group - 1) + relative[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.bias(self.offsets)[self.index.flatten()].view(n, n, -1).permute(2, 0, 1)
        y = (scores + bias).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, group: int, interval: int, is_near: bool) -> None:
        super().__init__()
        self.group, self.interval, self.is_near = group, interval, is_near
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, group)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        b, height, width, c = x.shape
        y = self.norm1(x)
        g = self.group
        if self.is_near:
            y = y.reshape(b, height // g, g, width // g, g, c).permute(0, 1, 3, 2, 4, 5)
        else:
            y = y.reshape(b, g, height // g, g, width // g, c).permute(0, 2, 4, 1, 3, 5)
        y = self.attention(y.reshape(-1, g * g, c))
        y = y.reshape(b, height // g, width // g, g, g, c)
        y = y.permute(0, 1, 3, 2, 4, 5) if self.is_near else y.permute(0, 3, 1, 4, 2, 5)
        x = x + y.reshape(b, height, width, c)
        return x + self.mlp(self.norm2(x))


class CrossScaleEmbedding(nn.Module):
    """Convolutions of several sizes and one stride, side by side."""

    def __init__(self, into: int, dim: int, sizes: tuple[int, ...], stride: int) -> None:
        super().__init__()
        last = len(sizes) - 1
        outs = [dim // 2 ** min(i + 1, last) for i in range(len(sizes))]
        self.convs = nn.ModuleList(
            nn.Conv2d(into, out, size, stride, (size - stride) // 2)
            for size, out in zip(sizes, outs, strict=True)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([conv(x) for conv in self.convs], 1)
        return self.norm(y.permute(0, 2, 3, 1))


class CrossFormer(nn.Module):
    def __init__(
        self,
        dims: tuple[int, ...] = (64, 128, 256, 512),
        depths: tuple[int, ...] = (1, 1, 4, 2),
        image: int = 112,
    ) -> None:
        super().__init__()
        self.embeds, self.stages = nn.ModuleList(), nn.ModuleList()
        into, size = 3, image // 4
        for i, (dim, depth) in enumerate(zip(dims, depths, strict=True)):
            sizes, stride = ((4, 8, 16, 32), 4) if i == 0 else ((2, 4), 2)
            self.embeds.append(CrossScaleEmbedding(into, dim, sizes, stride))
            group = 7 if size % 7 == 0 else size
            self.stages.append(
                nn.Sequential(
                    *(Block(dim, dim // 32, group, size // group, j % 2 == 0) for j in range(depth))
                )
            )
            into, size = dim, size // 2
        self.norm, self.head = nn.LayerNorm(dims[-1]), nn.Linear(dims[-1], 100)

    def forward(self, x: Tensor) -> Tensor:
        for embed, stage in zip(self.embeds, self.stages, strict=True):
            x = stage(embed(x)).permute(0, 3, 1, 2)
        return self.head(self.norm(x.flatten(2).transpose(1, 2)).mean(1))


def crossformer() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A small CrossFormer, and two images."""
    return CrossFormer(image=112).eval(), (torch.randn(2, 3, 112, 112),)
