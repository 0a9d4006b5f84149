"""Demucs, its first version: a UNet of convolutions over a waveform with an LSTM in its middle."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Demucs(nn.Module):
    def __init__(
        self, sources: int = 4, channels: int = 16, depth: int = 6, kernel: int = 8, stride: int = 4
    ) -> None:
        super().__init__()
        self.sources = sources
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        into = 2
        for i in range(depth):
            self.encoder.append(
                nn.Sequential(
                    nn.Conv1d(into, channels, kernel, stride),
                    nn.ReLU(),
                    nn.Conv1d(channels, 2 * channels, 1),
                    nn.GLU(1),
                )
            )
            out = into if i else sources * 2
            layers: list[nn.Module] = [
                nn.Conv1d(channels, 2 * channels, 3),
                nn.GLU(1),
                nn.ConvTranspose1d(channels, out, kernel, stride),
            ]
            self.decoder.insert(0, nn.Sequential(*layers, *([nn.ReLU()] if i else [])))
            into, channels = channels, 2 * channels
        self.lstm = nn.LSTM(into, into, 2, bidirectional=True)
        self.linear = nn.Linear(2 * into, into)

    def forward(self, mix: Tensor) -> Tensor:
        x, saved = mix, []
        for encode in self.encoder:
            x = encode(x)
            saved.append(x)
        x = self.linear(self.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for decode in self.decoder:
            skip = saved.pop()
            cut = skip.shape[-1] - x.shape[-1]
            x = x + skip[..., cut // 2 : skip.shape[-1] - (cut - cut // 2)]
            x = decode(x)
        return x.view(x.shape[0], self.sources, 2, x.shape[-1])


def valid_length(length: int, depth: int = 6, kernel: int = 8, stride: int = 4) -> int:
    """The least length from `length` on that all layers divide."""
    for _ in range(depth):
        length = max(-(-(length - kernel) // stride) + 1, 1) + 2
    for _ in range(depth):
        length = (length - 1) * stride + kernel
    return length


def demucs() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Six layers, and a stereo waveform."""
    return Demucs().eval(), (torch.randn(1, 2, valid_length(40000)),)
