"""Attention as models write it: finite masks, sinks, and decoding one token."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from stack.measure.gpu_program import GpuProgram, Rival

Tensor = torch.Tensor
DECODED = {"heads": 32, "groups": 8, "width": 128}


def scaled(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT) * (1 / math.sqrt(q.shape[-1]))


def causal_scores(q: Tensor, k: Tensor, hidden: float = -math.inf) -> Tensor:
    """Returns scaled scores; future keys score `hidden`."""
    scores = scaled(q, k)
    line = torch.arange(scores.shape[-1], device=scores.device)
    return scores.masked_fill(line[None, :] > line[:, None], hidden)


def finite_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Masks keys with the smallest finite number, as the code of Hugging Face does."""
    return torch.softmax(causal_scores(q, k, torch.finfo(q.dtype).min), dim=-1) @ v


def sink_column(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """Adds a learned score per head to the softmax and drops it afterwards."""
    scores = causal_scores(q, k)
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    together = torch.cat([scores, column], dim=-1)
    together = together - together.max(dim=-1, keepdim=True).values
    return torch.softmax(together, dim=-1)[..., :-1] @ v


def sink_floor(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """Computes the same as `sink_column` by one more term in the softmax denominator."""
    scores, sink = causal_scores(q, k), sinks[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    weights = torch.exp(scores - top)
    return (weights / (weights.sum(-1, keepdim=True) + torch.exp(sink - top))) @ v


def softmax_plus_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes attention with a sink of score 0: 1 is added to the softmax denominator."""
    scores = causal_scores(q, k)
    top = scores.amax(-1, keepdim=True).clamp(min=0)
    weights = torch.exp(scores - top)
    return (weights / (weights.sum(-1, keepdim=True) + torch.exp(-top))) @ v


MASKS: dict[str, Callable[..., Tensor]] = {
    "finite_mask": finite_mask,
    "sink_column": sink_column,
    "sink_floor": sink_floor,
    "softmax_plus_one": softmax_plus_one,
}


def one_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Grouped-query attention of the newest token over all keys: q of [b, g, h / g, d]."""
    return torch.softmax(scaled(q, k), dim=-1) @ v


def decode(batch: int = 8, keys: int = 32768, device: str = "cuda") -> GpuProgram:
    """Returns attention with one query per sequence; its cost is the memory that it reads."""
    heads, groups, width = DECODED["heads"], DECODED["groups"], DECODED["width"]

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(torch.bfloat16)

    q = draw(batch, groups, heads // groups, width)
    k, v = draw(batch, groups, keys, width), draw(batch, groups, keys, width)
    return GpuProgram(
        one_query,
        (q, k, v),
        flops=4.0 * batch * heads * keys * width,
        bytes=2.0 * q.nbytes + k.nbytes + v.nbytes,
        exps=1.0 * batch * heads * keys,
        split=(0, 0, 0),
        parts=batch,
        rivals={"sdpa": Rival("library", lambda: F.scaled_dot_product_attention)},
    )
