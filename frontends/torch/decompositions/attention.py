"""Attention as separate ops: matmul, scale, mask, softmax, matmul.

Torch's own decomposition of `scaled_dot_product_attention` computes in f32 throughout. Here the
operands keep their type and only the scores are f32, as in hand-written attention; this form can be
streamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stack.frontends.torch.tensors.autocast import without_autocast

_NARROW = (torch.bfloat16, torch.float16)


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts floats to the autocast type, if autocast is enabled."""
    kind = tensors[0].device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return tensors
    low = torch.get_autocast_dtype(kind)
    return tuple(x.to(low) if x.is_floating_point() else x for x in tensors)


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Computes `F.scaled_dot_product_attention` for shapes `[..., m, d]` and `[..., n, d]`.

    Fully masked rows are 0.

    Raises:
        RuntimeError: for both a mask and `is_causal`.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError("attention takes a mask or is_causal=True, not both")
    query, key, value = as_autocast(query, key, value)
    with without_autocast(query.device):
        if enable_gqa:
            key, value = (repeated_heads(x, query.shape[-3]) for x in (key, value))
        weights = weights_of(query, key, attn_mask, is_causal, scale)
        weights = torch.dropout(weights, dropout_p, train=dropout_p > 0)
        return weights.to(value.dtype) @ value


def weights_of(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Returns the attention weights `[..., m, n]`; f32 for 16-bit floats."""
    scores = scores_of(query, key)
    scores = scores * (1 / torch.sym_sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        row, column = (torch.arange(n, device=scores.device) for n in scores.shape[-2:])
        scores = scores.masked_fill(column > row[:, None], -math.inf)
    softmax: Any = torch.softmax
    if mask is not None:
        scores, softmax = _masked(scores, mask), torch.ops.aten._safe_softmax
    return softmax(scores, -1)


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """The decomposition of `aten._safe_softmax`: softmax, but 0 for rows that are all -inf."""
    if x.numel() == 0:
        return torch.softmax(x, dim, dtype)
    wide = x.float() if x.dtype in _NARROW else x
    highest = wide.amax(dim, keepdim=True)
    powers = (wide - highest.masked_fill(highest == -math.inf, 0)).exp()
    total = powers.sum(dim, keepdim=True)
    return (powers / total.masked_fill(total == 0, 1)).to(dtype or x.dtype)


def repeated_heads(x: Tensor, heads: Any) -> Tensor:
    """Repeats each head so that there are `heads` of them."""
    return (
        x.unsqueeze(-3).expand(*x.shape[:-2], heads // x.shape[-3], *x.shape[-2:]).flatten(-4, -3)
    )


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    """Returns the scores `query @ key.mT`; f32 for 16-bit floats."""
    return _wide_product(query, key) if query.dtype in _NARROW else query @ key.mT


def _wide_product(x: Tensor, y: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    made: Any = _WideProduct.apply(*(v.expand(*batch, *v.shape[-2:]) for v in (x, y)))
    return made


class _WideProduct(torch.autograd.Function):
    """Computes `x @ y.mT` of 16-bit floats in f32; its gradients are 16-bit matmuls."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        count = math.prod(x.shape[:-2])
        sides = (v.reshape(count, *v.shape[-2:]) for v in (x, y.mT))
        return torch.bmm(*sides, out_dtype=torch.float32).view(*x.shape[:-1], y.shape[-2])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        grad = grads[0].to(x.dtype)
        return grad @ y, grad.mT @ x

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        sides = (
            v.unsqueeze(0) if axis is None else v.movedim(axis, 0)
            for v, axis in zip((x, y), axes, strict=True)
        )
        return _wide_product(*sides), 0


def _over_attention(function: Any) -> Callable[..., Any]:
    """Returns a copy of a torch function that calls our attention instead of torch's.

    The copy ignores torch function modes, which would call torch's own function.
    """
    changed = {"scaled_dot_product_attention": attention, "has_torch_function": lambda _: False}
    own = {**function.__globals__, **changed}
    made = FunctionType(function.__code__, own, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


WRITTEN: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (
            F.scaled_dot_product_attention,
            torch.ops.aten.scaled_dot_product_attention,
            torch.ops.aten.scaled_dot_product_attention.default,
        ),
        attention,
    ),
    F.multi_head_attention_forward: _over_attention(F.multi_head_attention_forward),
}

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {torch.ops.aten._safe_softmax.default: safe_softmax}
