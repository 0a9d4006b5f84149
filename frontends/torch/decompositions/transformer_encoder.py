"""Decompositions of torch's fast paths of `MultiheadAttention` and `TransformerEncoderLayer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from stack.frameworks import torch_private as private
from stack.frontends.torch.decompositions.attention import attention, weights_of

_KEYS = 1  # mask type: marks keys that are padding


def _multi_head(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Computes `torch._native_multi_head_attention`; a true (nonzero) mask hides elements."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (F.linear(*p).unflatten(-1, (num_head, -1)).transpose(1, 2) for p in parts)
    if mask is not None:
        mask = ~mask.bool()
        mask = mask[:, None, None] if mask_type == _KEYS else mask
    made = attention(q, k, v, mask).transpose(1, 2).flatten(-2)
    weights = weights_of(q, k, mask) if need_weights else None
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return F.linear(made, proj_weight, proj_bias), weights


def _encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Computes `torch._transformer_encoder_layer_fwd`."""

    def attend(x: Tensor) -> Tensor:
        return _multi_head(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
            need_weights=False, mask_type=mask_type,
        )[0]  # fmt: skip

    def feed(x: Tensor) -> Tensor:
        activation = F.gelu if use_gelu else F.relu
        inner = activation(F.linear(x, ffn_weight_1, ffn_bias_1))
        return F.linear(inner, ffn_weight_2, ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first(src))
        return x + feed(second(x))
    x = first(src + attend(src))
    return second(x + feed(x))


WRITTEN: dict[Any, Callable[..., Any]] = {
    private.MULTI_HEAD: _multi_head,
    private.ENCODER_LAYER: _encoder_layer,
}
