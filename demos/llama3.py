"""A Llama 3 of any size: grouped heads, attention by PyTorch's own operator, no table of a mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

THETA = 500000.0


@dataclass(frozen=True)
class Sizes:
    """Widths of a model; by default those of Llama 3 8B, but for its 32 layers.

    `groups`: heads of keys and values.
    """

    layers: int = 4
    width: int = 4096
    hidden: int = 14336
    heads: int = 32
    groups: int = 8
    words: int = 128256
    tokens: int = 2048
    batch: int = 8


class Layer(nn.Module):
    """Attention with rotary positions, and a gated perceptron, each on top of what comes in."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.width // sizes.heads
        few = sizes.groups * self.head
        self.wq, self.wo = (_linear(sizes.width, sizes.width) for _ in "qo")
        self.wk, self.wv = (_linear(sizes.width, few) for _ in "kv")
        self.gate, self.up = (_linear(sizes.width, sizes.hidden) for _ in range(2))
        self.down = _linear(sizes.hidden, sizes.width)
        self.before, self.between = (nn.RMSNorm(sizes.width, eps=1e-5) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.before(x)
        q, k, v = (f(h).unflatten(2, (-1, self.head)).transpose(1, 2) for f in self._maps)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(made.transpose(1, 2).flatten(2))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    @property
    def _maps(self) -> tuple[nn.Module, ...]:
        return self.wq, self.wk, self.wv


def _linear(width: int, out: int) -> nn.Linear:
    return nn.Linear(width, out, bias=False)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Llama3(nn.Module):
    """Next-token loss of a batch of tokens."""

    cos: Tensor
    sin: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = _linear(sizes.width, sizes.words)
        half = sizes.width // sizes.heads // 2
        rates = THETA ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(sizes.tokens).float(), rates)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())
