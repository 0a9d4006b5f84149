"""torch's own modules, a mixer, and a recommendation model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stack.demos.suite import Setting

Tensor = torch.Tensor
Target = tuple[nn.Module, tuple[Any, ...]]
LAYERS = 2


def transformer(setting: Setting) -> Target:
    """Returns `nn.Transformer` in the sizes of its paper."""
    batch, length = (16, 512) if setting.large else (1, 64)
    net = nn.Transformer(
        num_encoder_layers=LAYERS, num_decoder_layers=LAYERS, dropout=0.0, batch_first=True
    )
    return net, (torch.randn(batch, length, 512), torch.randn(batch, length, 512))


def encoder(setting: Setting) -> Target:
    """Returns `nn.TransformerEncoder` in the sizes of BERT."""
    layer = nn.TransformerEncoderLayer(
        768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True
    )
    shape = (32, 512, 768) if setting.large else (1, 128, 768)
    return nn.TransformerEncoder(layer, LAYERS), (torch.randn(shape),)


class Recurrent(nn.Module):
    """A language model of two recurrent layers."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(10000, width)
        self.layers = getattr(nn, kind)(width, width, LAYERS, batch_first=True)
        self.head = nn.Linear(width, 10000)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens))[0])


def _recurrent(kind: str) -> Callable[[Setting], Target]:
    def make(setting: Setting) -> Target:
        width, shape = (1024, (64, 128)) if setting.large else (512, (4, 32))
        return Recurrent(kind, width), (torch.randint(0, 10000, shape),)

    return make


class MixerBlock(nn.Module):
    """An MLP across patches, then one across channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()

        def perceptron(size: int, inner: int) -> nn.Module:
            return nn.Sequential(nn.Linear(size, inner), nn.GELU(), nn.Linear(inner, size))

        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = perceptron(patches, width // 2)
        self.within = perceptron(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.second(x))


class Mixer(nn.Module):
    """MLP-Mixer B/16."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(MixerBlock(196, width) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.embed(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(y).mean(1))


def mixer(setting: Setting) -> Target:
    return Mixer(), (torch.randn(64 if setting.large else 1, 3, 224, 224),)


class DLRM(nn.Module):
    """Bags of categories and a dense part, all their pairwise products, and an MLP on top."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width),
            nn.ReLU(),
        )  # fmt: skip
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.pairs: Tensor
        self.register_buffer("pairs", pairs, persistent=False)
        self.top = nn.Sequential(
            nn.Linear(pairs.shape[1] + width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(),
            nn.Linear(512, 1),
        )  # fmt: skip

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = self.bottom(dense)
        found = [bag(indices[:, i]) for i, bag in enumerate(self.bags)]
        all_ = torch.stack([x, *found], dim=1)
        products = all_ @ all_.mT
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, chosen], dim=1)))


def dlrm(setting: Setting) -> Target:
    tables, rows, batch = (26, 100000, 8192) if setting.large else (26, 10000, 128)
    dense, indices = torch.randn(batch, 13), torch.randint(0, rows, (batch, tables, 4))
    return DLRM(tables, rows, 64), (dense, indices)


PROGRAMS: dict[str, Callable[[Setting], Target]] = {
    "transformer": transformer,
    "encoder": encoder,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "mixer": mixer,
    "dlrm": dlrm,
}
