"""Programs for `stackc bench gpu` as users wrote them, of classes on which compilers lose time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from stack.demos.gpu_attention import causal, full, positions
from stack.demos.gpu_masks import scaled
from stack.measure.gpu_program import GpuProgram

Tensor = torch.Tensor
BUCKETS, EXACT, FARTHEST = 32, 8, 128  # of T5's positions; up to EXACT each has its own


def t5_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Adds a learned bias for the bucket of each distance, as T5 does."""
    scores = q @ k.mT
    row, column = positions(scores)
    away = column - row
    near = away.abs()
    ratio = torch.log(near.float().clamp(min=1) / EXACT) / math.log(FARTHEST / EXACT)
    far = (EXACT + (ratio * EXACT).long()).clamp(max=BUCKETS // 2 - 1)
    bucket = (away > 0).long() * (BUCKETS // 2) + torch.where(near < EXACT, near, far)
    return torch.softmax(scores + table[bucket].permute(2, 0, 1), dim=-1) @ v


def boolean_mask(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    return torch.softmax(scaled(q, k).masked_fill(~seen, -math.inf), dim=-1) @ v


def cast_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes causal attention on values that the user converted to f32."""
    if q.dtype == torch.float64:  # the reference
        return causal(q, k, v)
    return causal(q.float(), k.float(), v.float()).to(q.dtype)


class Fire(nn.Module):
    """SqueezeNet's module: a squeezing convolution, then two whose results are joined."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.small = nn.Conv2d(squeezed, channels, 1)
        self.large = nn.Conv2d(squeezed, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.small(x)), F.relu(self.large(x))], 1)


def _attention(
    fn: Callable[..., Tensor], small: bool, device: str, queries: int = 2048, keys: int = 2048
) -> GpuProgram:
    batch, heads, width = (4, 16, 128) if queries == keys else (1, 16, 128)
    if small:
        batch, heads, queries, keys, width = 1, 2, 12, 12 * keys // queries, 16

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(torch.bfloat16)

    q = draw(batch, heads, queries, width)
    k, v = draw(batch, heads, keys, width), draw(batch, heads, keys, width)
    args: tuple[Tensor, ...] = (q, k, v)
    if fn is t5_bias:
        args = (*args, draw(BUCKETS, heads))
    if fn is boolean_mask:
        args = (*args, torch.rand(queries, keys, device=device) > 0.5)
    seen = 1.0 if fn in (t5_bias, full) else 0.5
    scores = batch * heads * queries * keys * seen
    moved = sum(a.nbytes for a in args) + q.nbytes
    return GpuProgram(fn, args, flops=4 * scores * width, bytes=moved, exps=scores)


def _fire(small: bool, device: str) -> GpuProgram:
    channels, squeezed, batch, side = (8, 4, 1, 6) if small else (128, 32, 16, 56)
    net = Fire(channels, squeezed).to(device).eval()
    x = torch.randn(batch, channels, side, side, device=device)
    flops = 2.0 * batch * side**2 * squeezed * channels * (1 + 1 + 9)
    return GpuProgram(net, (x,), flops=flops, bytes=3.0 * x.nbytes)


def _wide_images(small: bool, device: str) -> GpuProgram:
    batch, side = (1, 6) if small else (16, 224)
    net = nn.Conv2d(64, 256, 1).to(device).eval()
    x = torch.randn(batch, 64, side, side, device=device)
    return GpuProgram(net, (x,), flops=2.0 * batch * side**2 * 64 * 256, bytes=5.0 * x.nbytes)


def _instance_norm(small: bool, device: str) -> GpuProgram:
    x = torch.randn(*((2, 3, 4, 5) if small else (112, 64, 512, 512)), device=device)
    return GpuProgram(lambda x: F.instance_norm(x), (x,), bytes=2.0 * x.nbytes)


def _middle(fn: Callable[[Tensor], Tensor], small: bool, device: str) -> GpuProgram:
    x = torch.randn(*((3, 20, 7) if small else (128, 4096, 4095)), device=device)
    return GpuProgram(fn, (x,), bytes=float(x.nbytes))


PROGRAMS: dict[str, Callable[[bool, str], GpuProgram]] = {
    "causal": partial(_attention, causal),
    "full": partial(_attention, full),  # twice the work of causal, as are a bias and a random mask
    "t5_bias": partial(_attention, t5_bias),
    "boolean_mask": partial(_attention, boolean_mask),
    "cast_by_hand": partial(_attention, cast_by_hand),
    "long_keys": partial(_attention, full, queries=512, keys=8192),
    "fire": _fire,
    "1x1_wide": _wide_images,
    "instance_norm": _instance_norm,
    "sum_of_middle": partial(_middle, lambda x: x.sum(1)),
    "argmax_of_middle": partial(_middle, lambda x: x.argmax(1)),
}


def written(name: str, small: bool = False, device: str = "cuda") -> GpuProgram:
    """Returns the program of `PROGRAMS` with this name. Raises KeyError for other names."""
    return PROGRAMS[name](small, device)
