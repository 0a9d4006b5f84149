"""Convolutions for `stackc bench gpu`, with the bias and activation that follow them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn

from stack.measure.gpu_program import GpuProgram


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution.

    Attributes:
        kind: a module of torch, such as "Conv2d".
        inner, outer: channels.
        shape: batch, then the sizes of the image.
        size: of the window, along every axis.
        options: of the module.
    """

    kind: str
    inner: int
    outer: int
    shape: tuple[int, ...]
    size: int = 3
    options: dict[str, Any] = field(default_factory=dict[str, Any])


def _depthwise(channels: int, size: int) -> dict[str, Any]:
    return {"groups": channels, "padding": size // 2}


CONVOLUTIONS: dict[str, Convolution] = {
    "resnet_3x3": Convolution("Conv2d", 128, 128, (32, 28, 28), 3, {"padding": 1}),
    "resnet_1x1": Convolution("Conv2d", 256, 1024, (32, 14, 14), 1),
    "resnet_stem": Convolution("Conv2d", 3, 64, (32, 224, 224), 7, {"stride": 2, "padding": 3}),
    "vgg_3x3": Convolution("Conv2d", 64, 64, (16, 224, 224), 3, {"padding": 1}),
    "unet_up": Convolution("ConvTranspose2d", 256, 128, (8, 64, 64), 2, {"stride": 2}),
    "gan_up": Convolution(
        "ConvTranspose2d", 256, 128, (16, 32, 32), 4, {"stride": 2, "padding": 1}
    ),
    "resnext": Convolution("Conv2d", 256, 256, (32, 28, 28), 3, {"padding": 1, "groups": 32}),
    "mobilenet": Convolution("Conv2d", 192, 192, (32, 56, 56), 3, _depthwise(192, 3)),
    "convnext": Convolution("Conv2d", 96, 96, (32, 56, 56), 7, _depthwise(96, 7)),
    "whisper_stem": Convolution("Conv1d", 80, 768, (8, 3000), 3, {"padding": 1}),
    "conformer": Convolution("Conv1d", 512, 512, (8, 1500), 31, _depthwise(512, 31)),
    "video": Convolution("Conv3d", 32, 64, (4, 16, 56, 56), 3, {"padding": 1}),
}
RANKS = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3, "ConvTranspose2d": 2}


def convolution(name: str, dtype: str = "bfloat16", device: str = "cuda") -> GpuProgram:
    """Returns a convolution with its bias and a ReLU, as used in networks."""
    case = CONVOLUTIONS[name]
    kind = getattr(torch, dtype)
    module = getattr(nn, case.kind)(case.inner, case.outer, case.size, **case.options)
    net = nn.Sequential(module, nn.ReLU()).to(device, kind).eval()
    batch, *image = case.shape
    x = torch.randn(batch, case.inner, *image, device=device).to(kind)
    with torch.no_grad():
        out = net(x)
    window = case.size ** RANKS[case.kind]
    places = prod(image if "Transpose" in case.kind else out.shape[2:])
    per_place = case.inner // case.options.get("groups", 1) * window * case.outer
    moved = x.nbytes + out.nbytes + module.weight.nbytes
    return GpuProgram(net, (x,), flops=2.0 * batch * places * per_place, bytes=moved)
