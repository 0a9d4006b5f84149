"""Models of `timm`: its own miniatures, and others at small widths; no downloads."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

# name: (name in timm, its arguments, size of the image)
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "vit": ("test_vit", {}, 96),
    "vit_registers": ("test_vit3", {}, 96),
    "vit_relpos": ("test_vit_relpos", {}, 96),
    "resnet": ("test_resnet", {}, 64),
    "efficientnet": ("test_efficientnet", {}, 64),
    "efficientnet_gn": ("test_efficientnet_gn", {}, 64),
    "efficientnet_evos": ("test_efficientnet_evos", {}, 64),
    "convnext": ("test_convnext", {}, 64),
    "maxvit": ("test_maxvit", {"img_size": 64}, 64),
    "coatnet": ("test_coatnet", {"img_size": 64}, 64),
    "nfnet": ("test_nfnet", {}, 64),
    "mambaout": ("test_mambaout", {}, 64),
    "byobnet": ("test_byobnet", {}, 64),
    "mobilenetv3": ("mobilenetv3_small_050", {}, 64),
    "ghostnet": ("ghostnet_050", {}, 64),
    "regnetx": ("regnetx_002", {}, 64),
    "repvgg": ("repvgg_a0", {}, 64),
    "mixer": ("mixer_s32_224", {"img_size": 64, "embed_dim": 32, "num_blocks": 2}, 64),
    "gmlp": ("gmlp_ti16_224", {"img_size": 64, "embed_dim": 32, "num_blocks": 2}, 64),
    "resmlp": ("resmlp_12_224", {"img_size": 64, "embed_dim": 32, "num_blocks": 2}, 64),
    "poolformer": (
        "poolformer_s12", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}, 64,
    ),
    "convmixer": ("convmixer_768_32", {}, 64),
    "xcit": ("xcit_nano_12_p16_224", {"img_size": 64, "depth": 2}, 64),
    "edgenext": ("edgenext_xx_small", {}, 64),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {
            "img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2),
            "num_heads": (2, 4),
        },
        64,
    ),
    "inception_next": (
        "inception_next_tiny", {"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)}, 64,
    ),
    "starnet": ("starnet_s050", {}, 64),
}  # fmt: skip


def make(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model in evaluation mode and a batch of two. ImportError where timm has it not."""
    import timm

    model, fields, size = MODELS[name]
    if not timm.is_model(model):
        raise ImportError(f"timm {timm.__version__} has no {model}")
    module = timm.create_model(model, num_classes=10, **fields).eval()
    return module, (torch.randn(2, 3, size, size),)


FACTORIES = {name: functools.partial(make, name) for name in MODELS}
