"""Convolutional networks in torch's own modules: ResNet, MobileNet, VGG, a UNet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stack.demos.suite import Setting

Tensor = torch.Tensor
Target = tuple[nn.Module, tuple[Any, ...]]


def unit(
    inner: int, outer: int, size: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> nn.Sequential:
    """Returns a convolution with its norm and activation."""
    conv = nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), *([act(inplace=True)] if act else []))


class Residual(nn.Module):
    """Two 3 x 3 convolutions, or a bottleneck of three, with a residual connection."""

    def __init__(self, inner: int, width: int, stride: int, expand: int) -> None:
        super().__init__()
        outer = width * expand
        if expand == 1:
            self.body = nn.Sequential(unit(inner, width, 3, stride), unit(width, outer, act=None))
        else:
            self.body = nn.Sequential(
                unit(inner, width, 1),
                unit(width, width, 3, stride),
                unit(width, outer, 1, act=None),
            )
        same = inner == outer and stride == 1
        self.around = nn.Identity() if same else unit(inner, outer, 1, stride, act=None)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.body(x) + self.around(x))


def _resnet(blocks: tuple[int, ...], expand: int) -> nn.Module:
    layers: list[nn.Module] = [unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(Residual(inner, width, stride, expand))
            inner = width * expand
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000)]
    return nn.Sequential(*layers, *head)


class Inverted(nn.Module):
    """MobileNet-v2's block: wide inside, with a depthwise convolution."""

    def __init__(self, inner: int, outer: int, stride: int, expand: int) -> None:
        super().__init__()
        width = inner * expand
        self.same = stride == 1 and inner == outer
        wider = [unit(inner, width, 1, act=nn.ReLU6)] if expand > 1 else []
        self.body = nn.Sequential(
            *wider,
            unit(width, width, 3, stride, groups=width, act=nn.ReLU6),
            unit(width, outer, 1, act=None),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.same else self.body(x)


def _mobilenet() -> nn.Module:
    layers: list[nn.Module] = [unit(3, 32, 3, 2, act=nn.ReLU6)]
    inner = 32
    # expansion, width, blocks, stride
    for expand, width, count, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 2, 2), (6, 64, 2, 2), (6, 96, 2, 1)),
        *((6, 160, 2, 2), (6, 320, 1, 1)),
    ):
        for number in range(count):
            layers.append(Inverted(inner, width, 1 if number else stride, expand))
            inner = width
    layers.append(unit(inner, 1280, 1, act=nn.ReLU6))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def _vgg() -> nn.Module:
    """VGG-11."""
    layers: list[nn.Module] = []
    inner = 3
    for width, count in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(count):
            layers += [nn.Conv2d(inner, width, 3, padding=1), nn.ReLU(inplace=True)]
            inner = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


class UNet(nn.Module):
    """Encoder and decoder with skip connections at each level."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()

        def double(inner: int, outer: int) -> nn.Module:
            return nn.Sequential(unit(inner, outer), unit(outer, outer))

        self.down = nn.ModuleList(
            double(a, b) for a, b in zip((3, *widths[:-1]), widths, strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths)
        )
        self.merge = nn.ModuleList(double(2 * w, w) for w in widths[:-1])
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for number, stage in enumerate(self.down):
            x = stage(self.pool(x) if number else x)
            levels.append(x)
        for number in reversed(range(len(self.up))):
            x = self.merge[number](torch.cat([levels[number], self.up[number](x)], dim=1))
        return self.last(x)


def _pictures(make: Callable[[], nn.Module], batch: int, side: int, small: int) -> Any:
    def program(setting: Setting) -> Target:
        shape = (batch, 3, side, side) if setting.large else (1, 3, small, small)
        return make(), (torch.randn(shape),)

    return program


PROGRAMS: dict[str, Callable[[Setting], Target]] = {
    "resnet18": _pictures(lambda: _resnet((2, 2, 2, 2), 1), 64, 224, 224),
    "resnet50": _pictures(lambda: _resnet((3, 4, 6, 3), 4), 64, 224, 224),
    "mobilenet": _pictures(_mobilenet, 64, 224, 224),
    "vgg": _pictures(_vgg, 32, 224, 224),
    "unet": _pictures(UNet, 8, 256, 128),
}
