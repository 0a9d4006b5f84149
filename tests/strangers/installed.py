"""Models of libraries, with small configurations and random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Waveform(nn.Module):
    """Returns the result `waveform` of a model of speech."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids).waveform


def vits_decoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The vocoder of VITS: HiFi-GAN, whose blocks differ in kernels and dilations."""
    from transformers import VitsConfig
    from transformers.models.vits.modeling_vits import VitsHifiGan

    config = VitsConfig(flow_size=64, upsample_initial_channel=128)
    return VitsHifiGan(config).eval(), (torch.randn(1, 64, 24),)


def vits() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """VITS from text to a waveform. Its length depends on values."""
    from transformers import VitsConfig, VitsModel

    config = VitsConfig(
        vocab_size=38, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, ffn_dim=128,
        flow_size=64, spectrogram_bins=65, upsample_initial_channel=128,
        duration_predictor_filter_channels=64, wavenet_dilation_rate=1,
        prior_encoder_num_wavenet_layers=4, posterior_encoder_num_wavenet_layers=4,
    )  # fmt: skip
    model = VitsModel(config).eval()
    model.noise_scale = model.noise_scale_duration = 0.0
    return Waveform(model), (torch.randint(1, 38, (1, 24)),)


class LastState(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids, use_cache=False).last_hidden_state


def transformers_mamba() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Mamba's slow path: a loop over time steps."""
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, state_size=16, use_mambapy=False
    )
    return LastState(MambaModel(config)).eval(), (torch.randint(0, 256, (2, 64)),)


class Pooled(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        return self.model(image).pooler_output


def mobilevit() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """MobileViT, extra extra small."""
    from transformers import MobileViTConfig, MobileViTModel

    config = MobileViTConfig(
        hidden_sizes=[64, 80, 96], neck_hidden_sizes=[16, 16, 24, 48, 64, 80, 320],
        image_size=256, expand_ratio=2.0, initializer_range=0.1,
    )  # fmt: skip
    return Pooled(MobileViTModel(config)).eval(), (torch.randn(1, 3, 256, 256),)
