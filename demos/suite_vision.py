"""Vision models of Hugging Face with their default attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from stack.demos.suite import Setting
from stack.demos.suite_text import LAYERS, VOCABULARY, Output, Target, make_config


def _pictures(setting: Setting, large: int = 64) -> torch.Tensor:
    return torch.randn(large if setting.large else 1, 3, 224, 224)


def _transformer(family: str) -> Callable[[Setting], Target]:
    """Returns a model of the base size: the defaults of the config."""

    def make(setting: Setting) -> Target:
        config = make_config(f"{family}Config", {"num_hidden_layers": LAYERS})
        model = getattr(transformers, f"{family}Model")(config)
        return Output(model), (_pictures(setting),)

    return make


def swin(setting: Setting) -> Target:
    """Swin-T, two blocks in each of its four stages."""
    config = make_config("SwinConfig", {"depths": [2, 2, 2, 2]})
    return Output(transformers.SwinModel(config)), (_pictures(setting),)


def convnext(setting: Setting) -> Target:
    """ConvNeXt-T, two blocks in each of its four stages."""
    config = make_config("ConvNextConfig", {"depths": [2, 2, 2, 2]})
    return Output(transformers.ConvNextModel(config)), (_pictures(setting),)


def _small_layers(family: str, batch: int = 16) -> Callable[[Setting], Target]:
    """Returns a network of many small layers, as its config describes it."""

    def make(setting: Setting) -> Target:
        model = getattr(transformers, f"{family}Model")(make_config(f"{family}Config", {}))
        return Output(model), (_pictures(setting, batch),)

    return make


class Clip(nn.Module):
    """Scores of how well each text matches each image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Any, pictures: Any) -> Any:
        return self.model(input_ids=tokens, pixel_values=pictures).logits_per_image


def clip(setting: Setting) -> Target:
    """CLIP ViT-B/32: a tower for text, one for images."""
    text = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "eos_token_id": VOCABULARY - 1}
    config = transformers.CLIPConfig(
        text_config={**text, "attention_dropout": 0.0},
        vision_config={"num_hidden_layers": LAYERS, "attention_dropout": 0.0},
    )
    pictures = _pictures(setting)
    tokens = torch.randint(3, VOCABULARY - 1, (pictures.shape[0], 77))
    return Clip(transformers.CLIPModel(config)), (tokens, pictures)


PROGRAMS: dict[str, Callable[[Setting], Target]] = {
    "vit": _transformer("ViT"),
    "deit": _transformer("DeiT"),
    "swin": swin,
    "convnext": convnext,
    "clip": clip,
    "pvt_v2": _small_layers("PvtV2"),
    "poolformer": _small_layers("PoolFormer"),
    "mobilevit": _small_layers("MobileViT"),
}
