"""A Llama as people write it, of any width: what the demos of sharding train."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Widths of a model; the smallest that 8 ranks can share. `experts`: of each layer."""

    layers: int = 4
    width: int = 64
    hidden: int = 128
    heads: int = 4
    words: int = 64
    tokens: int = 16
    batch: int = 8
    experts: int = 0


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class Each(nn.Module):
    """A linear map for each expert, of what it takes: [expert, batch, seat, width]."""

    def __init__(self, count: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, out, width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ebcd,efd->ebcf", x, self.weight)


class Experts(nn.Module):
    """Perceptrons of which each token takes one (Fedus et al., "Switch Transformers", 2021).

    Of a sequence each expert has room for some tokens; those that find none are left as they are.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.count, self.room = sizes.experts, 2 * sizes.tokens // sizes.experts
        self.router = nn.Linear(sizes.width, sizes.experts, bias=False)
        self.up = Each(sizes.experts, sizes.width, sizes.hidden)
        self.down = Each(sizes.experts, sizes.hidden, sizes.width)

    def forward(self, h: Tensor) -> Tensor:
        share, expert = self.router(h).softmax(-1).max(-1)
        chosen = expert[..., None] == torch.arange(self.count)
        place = (chosen.cumsum(1) * chosen).sum(-1) - 1
        seat = place[..., None] == torch.arange(self.room)
        sent = (chosen[..., None] & seat[..., None, :]).to(h.dtype)  # [batch, token, expert, seat]
        made = self.down(F.silu(self.up(torch.einsum("bsec,bsd->ebcd", sent, h))))
        return torch.einsum("bsec,ebcd->bsd", sent * share[..., None, None], made)


class Layer(nn.Module):
    """Attention with rotary positions, and a gated perceptron, each on top of what comes in.

    Where there are experts, they take the place of the perceptron.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, hidden = sizes.width, sizes.hidden
        self.head = width // sizes.heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in "qkvo")
        self.experts = Experts(sizes) if sizes.experts else None
        if self.experts is None:
            self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(hidden, width, bias=False)
        self.before, self.between = Norm(width), Norm(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        h = self.before(x)
        shape = (*x.shape[:2], -1, self.head)
        q, k, v = (f(h).view(shape).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        scores = _rotated(q, cos, sin) @ _rotated(k, cos, sin).transpose(2, 3)
        weights = (scores / math.sqrt(shape[-1]) + mask).softmax(-1)
        x = x + self.wo((weights @ v).transpose(1, 2).flatten(2))
        h = self.between(x)
        if self.experts is not None:
            return x + self.experts(h)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Llama(nn.Module):
    """Next-token loss of a batch of tokens."""

    cos: Tensor
    sin: Tensor
    mask: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        half = sizes.width // sizes.heads // 2
        rates = 10000.0 ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(sizes.tokens).float(), rates)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        hidden = torch.full((sizes.tokens, sizes.tokens), -1e9).triu(1)
        self.register_buffer("mask", hidden)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin, self.mask)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.transpose(1, 2), y)


COLUMNS = tuple(f"layers.*.{name}.weight" for name in ("wq", "wk", "wv", "gate", "up"))
ROWS = tuple(f"layers.*.{name}.weight" for name in ("wo", "down"))


def data(sizes: Sizes, steps: int) -> list[tuple[Tensor, Tensor]]:
    """A batch of tokens and of those after them for each step: runs that count on."""
    draw = torch.Generator().manual_seed(0)
    found: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        starts = torch.randint(sizes.words, (sizes.batch, 1), generator=draw)
        run = (starts + torch.arange(sizes.tokens + 1)) % sizes.words
        found.append((run[:, :-1].contiguous(), run[:, 1:].contiguous()))
    return found
