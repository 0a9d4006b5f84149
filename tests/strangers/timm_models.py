"""Models of `timm`: its own miniatures, and others at small widths; no downloads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from strangers.report_row import Absent
from torch import Tensor, nn

# name: (name in timm, its arguments, size of the image)
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "vit": ("test_vit", {}, 96),
    "vit_registers": ("test_vit3", {"img_size": 96}, 96),
    "vit_relpos": ("test_vit_relpos", {"img_size": 96}, 96),
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
    """A model in evaluation mode and a small batch. Absent where timm has it not."""
    import timm

    model, fields, size = MODELS[name]
    if not timm.is_model(model):
        raise Absent(f"timm {timm.__version__} has no {model}")
    module = timm.create_model(model, num_classes=10, **fields).eval()
    return module, (torch.randn(4, 3, size, size),)


def mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(10, img_size=64, patch_size=16, num_blocks=2, embed_dim=32)


def gmlp() -> nn.Module:
    from timm.layers import GatedMlp
    from timm.models.mlp_mixer import MlpMixer, SpatialGatingBlock

    return MlpMixer(
        10, img_size=64, patch_size=16, num_blocks=2, embed_dim=32, mlp_ratio=6,
        block_layer=SpatialGatingBlock, mlp_layer=GatedMlp,
    )  # fmt: skip


def resmlp() -> nn.Module:
    from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

    return MlpMixer(
        10, img_size=64, patch_size=16, num_blocks=2, embed_dim=32, mlp_ratio=4,
        block_layer=ResBlock, norm_layer=Affine,
    )  # fmt: skip


def poolformer() -> nn.Module:
    from timm.models.metaformer import MetaFormer, Pooling

    return MetaFormer(
        num_classes=10, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), token_mixers=Pooling,
        downsample_norm=None, use_mlp_head=False,
    )  # fmt: skip


def convmixer() -> nn.Module:
    from timm.models.convmixer import ConvMixer

    return ConvMixer(dim=32, depth=2, kernel_size=5, patch_size=4, num_classes=10)


def with_image(build: Callable[[], nn.Module]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return build().eval(), (torch.randn(4, 3, 64, 64),)


FACTORIES = {name: functools.partial(make, name) for name in MODELS} | {
    build.__name__: functools.partial(with_image, build)
    for build in (mixer, gmlp, resmlp, poolformer, convmixer)
}
