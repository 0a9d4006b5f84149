"""Mamba as a plain loop over time steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus


class Mixer(nn.Module):
    """A selective state space: its steps are a loop of Python."""

    def __init__(self, dim: int, states: int = 16, taps: int = 4) -> None:
        super().__init__()
        self.inner, self.states, self.rank, self.taps = 2 * dim, states, max(dim // 16, 1), taps
        self.into = nn.Linear(dim, 2 * self.inner, bias=False)
        self.conv = nn.Conv1d(self.inner, self.inner, taps, groups=self.inner, padding=taps - 1)
        self.select = nn.Linear(self.inner, self.rank + 2 * states, bias=False)
        self.step = nn.Linear(self.rank, self.inner)
        self.log_a = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(self.inner, 1))
        self.d = nn.Parameter(torch.ones(self.inner))
        self.out = nn.Linear(self.inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        u, gate = self.into(x).chunk(2, -1)
        u = silu(self.conv(u.transpose(1, 2))[..., :length].transpose(1, 2))
        delta, b, c = self.select(u).split([self.rank, self.states, self.states], -1)
        delta = softplus(self.step(delta))
        a = -torch.exp(self.log_a)
        state = x.new_zeros(batch, self.inner, self.states)
        ys: list[Tensor] = []
        for t in range(length):
            decay = torch.exp(delta[:, t, :, None] * a)
            drive = delta[:, t, :, None] * b[:, t, None, :] * u[:, t, :, None]
            state = decay * state + drive
            ys.append((state * c[:, t, None, :]).sum(-1))
        y = torch.stack(ys, 1) + self.d * u
        return self.out(y * silu(gate))


class Mamba(nn.Module):
    def __init__(self, words: int = 256, dim: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(layers))
        self.mixers = nn.ModuleList(Mixer(dim) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.head(self.norm(x))


def mamba() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Two layers, 64 steps."""
    return Mamba().eval(), (torch.randint(0, 256, (2, 64)),)
