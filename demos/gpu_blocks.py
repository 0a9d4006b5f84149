"""Whole blocks for `stackc bench gpu`, from naive source: no attention kernel, no fused norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stack.demos.gpu_block_rivals import llama_in_jax, with_sdpa
from stack.demos.gpu_rows import EPS, rms_norm, wide
from stack.demos.models_torch import merge_heads, split_heads
from stack.measure.gpu_program import GpuProgram, Rival

Tensor = torch.Tensor


def causal_softmax(scores: Tensor) -> Tensor:
    line = torch.arange(scores.shape[-1], device=scores.device)
    return torch.softmax(scores.masked_fill(line[None, :] > line[:, None], -math.inf), dim=-1)


def naive_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Computes attention; if q has more heads, groups of them share a head of k and v."""
    share = q.shape[1] // k.shape[1]
    if share > 1:
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]))
    weights = causal_softmax(scores) if causal else torch.softmax(scores, dim=-1)
    return weights @ v


class RMSNorm(nn.Module):
    """Root mean square norm with a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.gain)


class LlamaBlock(nn.Module):
    """Rotary positions, grouped queries, SwiGLU; the sizes of Llama-3-8B by default."""

    def __init__(self, width: int, heads: int, groups: int, ffn: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.attend = naive_attention
        self.size = width // heads
        self.first, self.second = RMSNorm(width), RMSNorm(width)
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, groups * self.size, bias=False)
        self.wv = nn.Linear(width, groups * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, ffn, bias=False)
        self.up = nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)
        rates = 500000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(length), rates)
        angles = torch.cat([angles, angles], dim=-1)
        self.cos = nn.Buffer(angles.cos())
        self.sin = nn.Buffer(angles.sin())

    def turned(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-high, low], dim=-1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        q = self.turned(split_heads(self.wq(y), self.heads))
        k = self.turned(split_heads(self.wk(y), self.groups))
        v = split_heads(self.wv(y), self.groups)
        x = x + self.wo(merge_heads(self.attend(q, k, v, True)))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class PlainBlock(nn.Module):
    """Layer norms and GELU: GPT-2 if causal, BERT if the norm comes after, else ViT."""

    def __init__(self, width: int, heads: int, ffn: int, causal: bool, after: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.after = heads, causal, after
        self.attend = naive_attention
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(merge_heads(self.attend(q, k, v, self.causal)))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.causal else "none"))

    def forward(self, x: Tensor) -> Tensor:
        if self.after:
            x = self.first(x + self.attention(x))
            return self.second(x + self.mlp(x))
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class MoEBlock(nn.Module):
    """A mixture-of-experts layer with two experts per token; every expert computes every token."""

    def __init__(self, width: int, ffn: int, experts: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, ffn) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, ffn, width) * ffn**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(0, 1)
        logits = wide(self.router(y))
        best = logits.amax(-1, keepdim=True)
        rest = logits.masked_fill(logits == best, -math.inf).amax(-1, keepdim=True)
        weights = torch.softmax(logits.masked_fill(logits < rest, -math.inf), dim=-1)
        hidden = F.silu(y[None] @ self.up)
        outs = hidden @ self.down
        mixed = (outs * weights.to(outs.dtype).T[:, :, None]).sum(0)
        return x + mixed.view_as(x)


class SSDBlock(nn.Module):
    """The inner part of a Mamba-2 layer in its attention form, over the whole sequence."""

    def __init__(self, width: int, heads: int, state: int) -> None:
        super().__init__()
        self.heads, self.state = heads, state
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.inner = nn.Linear(width, 2 * width + 2 * state + heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.rate = nn.Parameter(torch.rand(heads))

    def forward(self, x: Tensor) -> Tensor:
        width, length = x.shape[-1], x.shape[1]
        sizes = [width, width, self.state, self.state, self.heads]
        gate, value, b, c, step = self.inner(self.norm(x)).split(sizes, dim=-1)
        step = F.softplus(wide(step))
        decay = torch.cumsum(-torch.exp(wide(self.rate)) * step, dim=1).transpose(1, 2)
        line = torch.arange(length, device=x.device)
        hidden = line[None, :] > line[:, None]
        gaps = decay[..., :, None] - decay[..., None, :]
        mask = gaps.masked_fill(hidden, -math.inf).exp()
        scores = wide(c @ b.mT)[:, None] * mask * step.transpose(1, 2)[:, :, None, :]
        y = merge_heads(scores.to(x.dtype) @ split_heads(value, self.heads))
        return x + self.out(y * F.silu(gate))


def _llama(batch: int, seq: int, width: int) -> tuple[nn.Module, float]:
    ffn, heads, groups = 7 * width // 2, width // 128, max(1, width // 512)
    block = LlamaBlock(width, heads, groups, ffn, seq)
    weights = 2 * width * width + 2 * width * groups * 128 + 3 * width * ffn
    return block, 2.0 * batch * seq * weights + 2.0 * batch * seq * seq * width


def _plain(causal: bool, after: bool) -> Callable[..., tuple[nn.Module, float]]:
    def make(batch: int, seq: int, width: int) -> tuple[nn.Module, float]:
        block = PlainBlock(width, max(1, width // 64), 4 * width, causal, after)
        square = (2.0 if causal else 4.0) * batch * seq * seq * width
        return block, 2.0 * batch * seq * 12 * width * width + square

    return make


def _moe(batch: int, seq: int, width: int) -> tuple[nn.Module, float]:
    ffn = 2 * width
    # work of two experts for each token: a system that computes all of them does more
    return MoEBlock(width, ffn, 8), 2.0 * batch * seq * 2 * 2 * width * ffn


def _ssd(batch: int, seq: int, width: int) -> tuple[nn.Module, float]:
    state, heads = 128, max(1, width // 64)
    inner = width * (2 * width + 2 * state + heads) + width * width
    square = batch * seq * seq * (width + state)  # the lower triangle of two matmuls
    return SSDBlock(width, heads, state), 2.0 * batch * seq * inner + 1.0 * square


MODELS: dict[str, tuple[Callable[..., tuple[nn.Module, float]], dict[str, int]]] = {
    "llama3-8b": (_llama, {"batch": 1, "seq": 2048, "width": 4096}),
    "gpt2": (_plain(True, False), {"batch": 8, "seq": 1024, "width": 768}),
    "bert": (_plain(False, True), {"batch": 32, "seq": 512, "width": 768}),
    "vit": (_plain(False, False), {"batch": 64, "seq": 197, "width": 768}),
    "moe": (_moe, {"batch": 1, "seq": 2048, "width": 2048}),
    "mamba2": (_ssd, {"batch": 2, "seq": 2048, "width": 1024}),
}


def block(
    model: str = "llama3-8b", mode: str = "forward", device: str = "cuda", **sizes: Any
) -> GpuProgram:
    """Returns one block of a model with random weights, or its training step.

    `sizes` replace the `batch`, `seq` and `width` of the model. The minimal work of a training step
    is three times that of the forward run.
    """
    make, usual = MODELS[model]
    size = {**usual, **sizes}
    with torch.device(device):
        module, flops = make(**size)
    module = module.to(torch.bfloat16)
    if mode == "forward":
        module = module.eval().requires_grad_(False)
    shape = (size["batch"], size["seq"], size["width"])
    x = torch.randn(shape, device=device).to(torch.bfloat16)
    moved = 2.0 * x.nbytes + sum(p.nbytes for p in module.parameters())
    steps = 1 if mode == "forward" else 3
    rivals: dict[str, Rival] = {}
    if hasattr(module, "attend") and mode == "forward":
        rivals["inductor-sdpa"] = with_sdpa(module)
    if isinstance(module, LlamaBlock) and mode == "forward":
        rivals["xla-cudnn"] = llama_in_jax(module)
    return GpuProgram(
        module,
        (x,),
        flops=steps * flops,
        bytes=steps * moved,
        mode=mode,
        wanted=(0,),
        rivals=rivals,
    )
