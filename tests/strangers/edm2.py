"""A UNet of diffusion models that preserves magnitudes, after EDM2."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, silu


def normalized(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """x over its root mean square along some dims."""
    norm = torch.linalg.vector_norm(x, dim=dims, keepdim=True, dtype=torch.float32)
    norm = 1e-4 + norm * math.sqrt(norm.numel() / x.numel())
    return x / norm.to(x.dtype)


def mp_silu(x: Tensor) -> Tensor:
    return silu(x) / 0.596


def mp_sum(a: Tensor, b: Tensor, t: float = 0.5) -> Tensor:
    return a.lerp(b, t) / math.sqrt((1 - t) ** 2 + t**2)


def mp_cat(a: Tensor, b: Tensor, t: float = 0.5) -> Tensor:
    na, nb = a.shape[1], b.shape[1]
    c = math.sqrt((na + nb) / ((1 - t) ** 2 + t**2))
    return torch.cat([c / math.sqrt(na) * (1 - t) * a, c / math.sqrt(nb) * t * b], 1)


class MPConv(nn.Module):
    """A convolution, or with no kernel a linear map, whose weights are normalized in each call."""

    def __init__(self, into: int, out: int, kernel: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, into, *kernel))

    def forward(self, x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
        w = normalized(self.weight, tuple(range(1, self.weight.ndim)))
        w = w * (gain / math.sqrt(w[0].numel()))
        if w.ndim == 2:
            return x @ w.t()
        return conv2d(x, w, padding=w.shape[-1] // 2)


class Block(nn.Module):
    def __init__(
        self,
        into: int,
        out: int,
        emb: int,
        flavor: str,
        resample: str = "keep",
        attention: bool = False,
    ) -> None:
        super().__init__()
        self.flavor, self.resample = flavor, resample
        self.emb_gain = nn.Parameter(torch.ones([]))
        self.conv0 = MPConv(out if flavor == "enc" else into, out, (3, 3))
        self.emb = MPConv(emb, out)
        self.conv1 = MPConv(out, out, (3, 3))
        self.skip = MPConv(into, out, (1, 1)) if into != out else None
        self.heads = out // 32 if attention else 0
        if attention:
            self.qkv, self.proj = MPConv(out, 3 * out, (1, 1)), MPConv(out, out, (1, 1))

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        if self.resample == "down":
            x = nn.functional.avg_pool2d(x, 2)
        elif self.resample == "up":
            x = interpolate(x, scale_factor=2, mode="nearest")
        if self.flavor == "enc":
            if self.skip is not None:
                x = self.skip(x)
            x = normalized(x, (1,))
        y = self.conv0(mp_silu(x))
        c = self.emb(emb, gain=self.emb_gain) + 1
        y = self.conv1(mp_silu(y * c[:, :, None, None]))
        if self.flavor == "dec" and self.skip is not None:
            x = self.skip(x)
        x = mp_sum(x, y, 0.3)
        if self.heads:
            y = self.qkv(x)
            y = y.reshape(y.shape[0], self.heads, -1, 3, y.shape[2] * y.shape[3])
            q, k, v = normalized(y, (2,)).unbind(3)
            w = torch.einsum("nhcq,nhck->nhqk", q, k / math.sqrt(q.shape[2])).softmax(3)
            y = torch.einsum("nhqk,nhck->nhcq", w, v)
            x = mp_sum(x, self.proj(y.reshape(x.shape)), 0.3)
        return x.clip(-256, 256)


class UNet(nn.Module):
    def __init__(
        self,
        channels: int = 3,
        base: int = 32,
        mult: tuple[int, ...] = (1, 2, 3, 4),
        blocks: int = 2,
    ) -> None:
        super().__init__()
        widths = [base * m for m in mult]
        emb = max(widths)
        self.register_buffer("freqs", 2 * math.pi * torch.randn(base))
        self.register_buffer("phases", 2 * math.pi * torch.rand(base))
        self.emb_noise, self.emb_label = MPConv(base, emb), MPConv(10, emb)
        self.enc, self.dec = nn.ModuleList(), nn.ModuleList()
        width, skips = widths[0], [widths[0]]
        self.stem = MPConv(channels + 1, width, (3, 3))
        for level, out in enumerate(widths):
            if level:
                self.enc.append(Block(width, width, emb, "enc", "down"))
                skips.append(width)
            for _ in range(blocks):
                self.enc.append(Block(width, out, emb, "enc", attention=level >= 2))
                width = out
                skips.append(width)
        self.takes: list[bool] = []
        for level, out in reversed(list(enumerate(widths))):
            if level == len(widths) - 1:
                self.add(Block(width, width, emb, "dec", attention=True), False)
                self.add(Block(width, width, emb, "dec"), False)
            else:
                self.add(Block(width, width, emb, "dec", "up"), False)
            for _ in range(blocks + 1):
                self.add(Block(width + skips.pop(), out, emb, "dec", attention=level >= 2), True)
                width = out
        self.out_gain = nn.Parameter(torch.ones([]))
        self.out = MPConv(width, channels, (3, 3))

    def add(self, block: Block, takes: bool) -> None:
        self.dec.append(block)
        self.takes.append(takes)

    def forward(self, x: Tensor, noise: Tensor, label: Tensor) -> Tensor:
        angle = noise.outer(self.freqs) + self.phases
        emb = self.emb_noise(angle.cos() * math.sqrt(2))
        emb = mp_silu(mp_sum(emb, self.emb_label(label * math.sqrt(label.shape[1]))))
        x = self.stem(torch.cat([x, torch.ones_like(x[:, :1])], 1))
        skips = [x]
        for block in self.enc:
            x = block(x, emb)
            skips.append(x)
        for block, takes in zip(self.dec, self.takes, strict=True):
            x = block(mp_cat(x, skips.pop()) if takes else x, emb)
        return self.out(x, gain=self.out_gain)


def edm2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Four levels with two blocks each; two images of 32 x 32."""
    label = torch.eye(10)[:2]
    return UNet().eval(), (torch.randn(2, 3, 32, 32), torch.randn(2), label)
