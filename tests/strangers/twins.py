"""Twins: attention within windows, then attention to a strided convolution of the image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class LocalAttention(nn.Module):
    """Attention inside windows of w x w pixels of a padded image."""

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        b, _, c = x.shape
        w, heads = self.window, self.heads
        x = x.view(b, height, width, c)
        down, right = -height % w, -width % w
        x = nn.functional.pad(x, (0, 0, 0, right, 0, down))
        rows, columns = (height + down) // w, (width + right) // w
        x = x.reshape(b, rows, w, columns, w, c).transpose(2, 3)
        qkv = self.qkv(x).reshape(b, rows * columns, w * w, 3, heads, c // heads)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5).unbind(0)
        x = scaled_dot_product_attention(q, k, v)
        x = x.transpose(2, 3).reshape(b, rows, columns, w, w, c)
        x = x.transpose(2, 3).reshape(b, rows * w, columns * w, c)
        return self.proj(x[:, :height, :width].reshape(b, height * width, c))


class GlobalAttention(nn.Module):
    """Attention of all pixels to those of a smaller image."""

    def __init__(self, dim: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )
        self.reduce = nn.Conv2d(dim, dim, ratio, ratio) if ratio > 1 else None
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        b, n, c = x.shape
        q = self.q(x).reshape(b, n, self.heads, c // self.heads).transpose(1, 2)
        if self.reduce is not None:
            image = x.transpose(1, 2).reshape(b, c, height, width)
            x = self.norm(self.reduce(image).flatten(2).transpose(1, 2))
        kv = self.kv(x).reshape(b, -1, 2, self.heads, c // self.heads)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        y = scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, ratio: int, window: int | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = (
            GlobalAttention(dim, heads, ratio)
            if window is None
            else LocalAttention(dim, heads, window)
        )
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        x = x + self.attention(self.norm1(x), height, width)
        return x + self.mlp(self.norm2(x))


class PositionalConv(nn.Module):
    """A depthwise convolution that stands for positions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, 1, 1, groups=dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        b, n, c = x.shape
        image = x.transpose(1, 2).reshape(b, c, height, width)
        return (self.conv(image) + image).flatten(2).transpose(1, 2)


class Twins(nn.Module):
    """Four stages; in each, blocks alternate between local and global attention."""

    def __init__(
        self,
        dims: tuple[int, ...] = (64, 128, 256, 512),
        depths: tuple[int, ...] = (2, 2, 10, 4),
        ratios: tuple[int, ...] = (8, 4, 2, 1),
        window: int = 7,
    ) -> None:
        super().__init__()
        self.patches, self.norms = nn.ModuleList(), nn.ModuleList()
        self.positions, self.stages = nn.ModuleList(), nn.ModuleList()
        before, size = 3, 4
        for dim, depth, ratio in zip(dims, depths, ratios, strict=True):
            self.patches.append(nn.Conv2d(before, dim, size, size))
            self.norms.append(nn.LayerNorm(dim))
            self.positions.append(PositionalConv(dim))
            self.stages.append(
                nn.ModuleList(
                    Block(dim, dim // 32, ratio, None if i % 2 or ratio == 1 else window)
                    for i in range(depth)
                )
            )
            before, size = dim, 2
        self.norm, self.head = nn.LayerNorm(dims[-1]), nn.Linear(dims[-1], 100)

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        for patch, norm, position, stage in zip(
            self.patches, self.norms, self.positions, self.stages, strict=True
        ):
            x = patch(x)
            height, width = x.shape[2:]
            x = norm(x.flatten(2).transpose(1, 2))
            for i, block in enumerate(stage):  # pyright: ignore[reportArgumentType]
                x = block(x, height, width)
                if i == 0:
                    x = position(x, height, width)
            x = x.transpose(1, 2).reshape(b, -1, height, width)
        return self.head(self.norm(x.flatten(2).transpose(1, 2)).mean(1))


def twins() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A small Twins, and a batch of two images."""
    return Twins().eval(), (torch.randn(2, 3, 224, 224),)
