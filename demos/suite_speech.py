"""Speech: encoders of Hugging Face, and a hand-written conformer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from stack.demos.suite import Setting
from stack.demos.suite_text import LAYERS, Output, Target, make_config

Tensor = torch.Tensor


def whisper_encoder(setting: Setting) -> Target:
    """The encoder of Whisper small on 30 seconds of audio; on a CPU that of Whisper base."""
    width, heads = (768, 12) if setting.large else (512, 8)
    sizes = {"d_model": width, "encoder_layers": LAYERS, "encoder_attention_heads": heads,
             "encoder_ffn_dim": 4 * width, "decoder_attention_heads": heads}  # fmt: skip
    config = make_config("WhisperConfig", sizes)
    encoder = transformers.WhisperModel(config).get_encoder()
    return Output(encoder), (torch.randn(8 if setting.large else 1, 80, 3000),)


def wav2vec2(setting: Setting) -> Target:
    """Wav2Vec2 base on one second of audio, ten on a GPU."""
    config = make_config(
        "Wav2Vec2Config", {"num_hidden_layers": LAYERS, "apply_spec_augment": False}
    )
    sound = torch.randn(4, 160000) if setting.large else torch.randn(1, 16000)
    return Output(transformers.Wav2Vec2Model(config)), (sound,)


class FeedForward(nn.Module):
    """A feed-forward layer whose residual update is halved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.down(F.silu(self.up(self.norm(x))))


class Convolution(nn.Module):
    """A gated depthwise convolution over time."""

    def __init__(self, width: int, size: int = 31) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, size, padding=size // 2, groups=width)
        self.inner = nn.BatchNorm1d(width)
        self.last = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.glu(self.first(self.norm(x).transpose(1, 2)), dim=1)
        return x + self.last(F.silu(self.inner(self.depthwise(y)))).transpose(1, 2)


class Attention(nn.Module):
    """Self-attention with torch's own module."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attend(y, y, y, need_weights=False)[0]


def conformer(setting: Setting) -> Target:
    """Blocks of feed-forward, attention, convolution and feed-forward."""
    width, heads = 512, 8
    blocks = [
        nn.Sequential(
            FeedForward(width),
            Attention(width, heads),
            Convolution(width),
            FeedForward(width),
            nn.LayerNorm(width),
        )
        for _ in range(LAYERS)
    ]
    shape = (16, 1000, width) if setting.large else (1, 200, width)
    return nn.Sequential(*blocks), (torch.randn(shape),)


PROGRAMS: dict[str, Callable[[Setting], Target]] = {
    "whisper_encoder": whisper_encoder,
    "wav2vec2": wav2vec2,
    "conformer": conformer,
}
