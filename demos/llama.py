"""A Llama 3 of any size, optionally with experts: the model trained by the sharding demos."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stack.ops.attention import with_lse

THETA = 500000.0
COLUMNS = tuple(f"layers.*.{name}.weight" for name in ("wq", "wk", "wv", "gate", "up"))
ROWS = tuple(f"layers.*.{name}.weight" for name in ("wo", "down"))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; the default is the smallest that 8 ranks can share.

    Attributes:
        groups: number of key and value heads.
        experts: number per layer, instead of its MLP; 0 for none.
    """

    layers: int = 4
    width: int = 64
    hidden: int = 128
    heads: int = 4
    groups: int = 4
    words: int = 64
    tokens: int = 16
    batch: int = 8
    experts: int = 0


# except for its 32 layers
LLAMA3_8B = Sizes(4, 4096, 14336, 32, 8, 128256, 2048, 8)


class Each(nn.Module):
    """A linear map per expert, on the tokens in its slots: [expert, batch, slot, width]."""

    def __init__(self, count: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, out, width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ebcd,efd->ebcf", x, self.weight)


class Experts(nn.Module):
    """Mixture of MLPs, one per token (Fedus et al., "Switch Transformers", 2021).

    Each expert has room for some tokens of a sequence; other tokens are left unchanged.
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


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # of queries, keys and values


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by PyTorch's function, for which code is generated."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def attended_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by the hosted operator, which has kernels written by hand for GPUs."""
    return with_lse(q, k, v, causal=True)[0]


class Layer(nn.Module):
    """Attention with rotary positions, and a gated MLP, each with a residual connection.

    With experts, they replace the MLP.
    """

    def __init__(self, sizes: Sizes, attend: Attend = attended) -> None:
        super().__init__()
        self.attend = attend
        self.head = sizes.width // sizes.heads
        few = sizes.groups * self.head
        self.wq, self.wo = (_linear(sizes.width, sizes.width) for _ in "qo")
        self.wk, self.wv = (_linear(sizes.width, few) for _ in "kv")
        self.experts = Experts(sizes) if sizes.experts else None
        if self.experts is None:
            self.gate, self.up = (_linear(sizes.width, sizes.hidden) for _ in range(2))
            self.down = _linear(sizes.hidden, sizes.width)
        self.before, self.between = (nn.RMSNorm(sizes.width, eps=1e-5) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.before(x)
        maps = (self.wq, self.wk, self.wv)
        q, k, v = (f(h).unflatten(2, (-1, self.head)).transpose(1, 2) for f in maps)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        made = self.attend(q, k, v)
        x = x + self.wo(made.transpose(1, 2).flatten(2))
        h = self.between(x)
        if self.experts is not None:
            return x + self.experts(h)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _linear(width: int, out: int) -> nn.Linear:
    return nn.Linear(width, out, bias=False)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Llama(nn.Module):
    """Next-token loss of a batch of tokens."""

    cos: Tensor
    sin: Tensor

    def __init__(self, sizes: Sizes, attend: Attend = attended) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes, attend) for _ in range(sizes.layers))
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


def data(sizes: Sizes, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Returns a batch of tokens and next tokens for each step: sequences that count up."""
    draw = torch.Generator().manual_seed(0)
    found: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        starts = torch.randint(sizes.words, (sizes.batch, 1), generator=draw)
        run = (starts + torch.arange(sizes.tokens + 1)) % sizes.words
        found.append((run[:, :-1].contiguous(), run[:, 1:].contiguous()))
    return found
