"""The models of `models` as pure JAX functions: the same weights, the same naive source."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stack.demos.models import (
    Arrays,
    GPT2Config,
    LlamaConfig,
    gpt2_block_weights,
    gpt2_weights,
    hidden,
    llama_block_weights,
    nest,
    token_batches,
)


def causal_mask(x: Any) -> Any:
    s = x.shape[1]
    return jnp.triu(jnp.full((s, s), -jnp.inf, x.dtype), 1)


def split_heads(x: Any, heads: int) -> Any:
    b, s, w = x.shape
    return x.reshape(b, s, heads, w // heads).transpose(0, 2, 1, 3)


def merge_heads(x: Any) -> Any:
    b, h, s, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, s, h * d)


def linear(p: Any, x: Any) -> Any:
    y = x @ p["weight"].T
    return y + p["bias"] if "bias" in p else y


def layer_norm(p: Any, x: Any, eps: float) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * p["weight"] + p["bias"]


def gpt2_attention(cfg: GPT2Config, p: Any, x: Any) -> Any:
    q, k, v = (split_heads(t, cfg.heads) for t in jnp.split(linear(p["qkv"], x), 3, axis=-1))
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(cfg.head_dim) + causal_mask(x)
    weights = jax.nn.softmax(scores, axis=-1)
    return linear(p["proj"], merge_heads(weights @ v))


def gpt2_block(cfg: GPT2Config, p: Any, x: Any) -> Any:
    x = x + gpt2_attention(cfg, p["attn"], layer_norm(p["ln_1"], x, cfg.eps))
    h = jax.nn.gelu(linear(p["mlp"]["fc"], layer_norm(p["ln_2"], x, cfg.eps)), approximate=True)
    return x + linear(p["mlp"]["proj"], h)


def gpt2_logits(cfg: GPT2Config, p: Any, tokens: Any) -> Any:
    x = p["wte"]["weight"][tokens] + p["wpe"]["weight"][jnp.arange(tokens.shape[1])]
    for i in range(cfg.layers):
        x = gpt2_block(cfg, p["h"][str(i)], x)
    return layer_norm(p["ln_f"], x, cfg.eps) @ p["wte"]["weight"].T


def gpt2_loss(cfg: GPT2Config, p: Any, tokens: Any, targets: Any) -> Any:
    log_probabilities = jax.nn.log_softmax(gpt2_logits(cfg, p, tokens), axis=-1)
    return -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1).mean()


def rms_norm(p: Any, x: Any, eps: float) -> Any:
    h = x.astype(jnp.float32)
    h = h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + eps)
    return p["weight"] * h.astype(x.dtype)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin


def expand_heads(cfg: LlamaConfig, x: Any) -> Any:
    b, kv, s, d = x.shape
    group = cfg.heads // cfg.kv_heads
    return jnp.broadcast_to(x[:, :, None], (b, kv, group, s, d)).reshape(b, kv * group, s, d)


def llama_attention(cfg: LlamaConfig, p: Any, x: Any) -> Any:
    s = x.shape[1]
    q = rotate(split_heads(linear(p["wq"], x), cfg.heads), p["cos"][:s], p["sin"][:s])
    k = rotate(split_heads(linear(p["wk"], x), cfg.kv_heads), p["cos"][:s], p["sin"][:s])
    v = split_heads(linear(p["wv"], x), cfg.kv_heads)
    k, v = expand_heads(cfg, k), expand_heads(cfg, v)
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(cfg.head_dim) + causal_mask(x)
    weights = jax.nn.softmax(scores, axis=-1)
    return linear(p["wo"], merge_heads(weights @ v))


def llama_block(cfg: LlamaConfig, p: Any, x: Any) -> Any:
    x = x + llama_attention(cfg, p["attn"], rms_norm(p["attn_norm"], x, cfg.eps))
    h = rms_norm(p["mlp_norm"], x, cfg.eps)
    return x + linear(
        p["mlp"]["down"], jax.nn.silu(linear(p["mlp"]["gate"], h)) * linear(p["mlp"]["up"], h)
    )


def _params(weights: Arrays) -> Any:
    return nest({name: jnp.asarray(array) for name, array in weights.items()})


def make_gpt2_block(cfg: GPT2Config) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Returns a function of parameters and activations `[batch, seq, width]`, and both."""
    args = _params(gpt2_block_weights(cfg)), jnp.asarray(hidden(cfg))
    return functools.partial(gpt2_block, cfg), args


def make_llama_block(cfg: LlamaConfig) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Returns a function of parameters and activations `[batch, seq, width]`, and both."""
    args = _params(llama_block_weights(cfg)), jnp.asarray(hidden(cfg))
    return functools.partial(llama_block, cfg), args


def make_gpt2(cfg: GPT2Config) -> tuple[Callable[..., Any], tuple[Any, Any, Any]]:
    """Returns the loss of parameters, tokens and next tokens `[batch, seq]`, and these."""
    tokens, targets = (jnp.asarray(t, jnp.int32) for t in next(token_batches(cfg)))
    return functools.partial(gpt2_loss, cfg), (_params(gpt2_weights(cfg)), tokens, targets)
