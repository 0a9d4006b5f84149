"""The Llama of `llama` as a JAX function, with the same weights under the same names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from stack.demos.llama import THETA, Sizes

Weights = Any  # nested dicts of arrays


def llama_of(sizes: Sizes) -> Callable[..., jax.Array]:
    """Next-token loss of a batch of tokens."""
    head_size = sizes.width // sizes.heads
    half = head_size // 2

    def rms(p: Weights, x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * p["weight"]

    def rotated(x: jax.Array) -> jax.Array:
        rates = THETA ** (-jnp.arange(half) / half)
        angles = jnp.arange(sizes.tokens)[:, None] * rates
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attend(p: Weights, x: jax.Array) -> jax.Array:
        shape = (*x.shape[:2], sizes.heads, head_size)
        q, k, v = (linear(p[n], x).reshape(shape).transpose(0, 2, 1, 3) for n in ("wq", "wk", "wv"))
        scores = rotated(q) @ rotated(k).swapaxes(2, 3) / math.sqrt(head_size)
        seen = jnp.tril(jnp.ones((sizes.tokens, sizes.tokens), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        return linear(p["wo"], (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape))

    def llama(
        embed: Weights, head: Weights, layers: Weights, norm: Weights, x: Any, y: Any
    ) -> jax.Array:
        h = embed["weight"][x]
        for i in range(sizes.layers):
            p = layers[str(i)]
            h = h + attend(p, rms(p["before"], h))
            inner = rms(p["between"], h)
            gated = jax.nn.silu(linear(p["gate"], inner)) * linear(p["up"], inner)
            h = h + linear(p["down"], gated)
        logits = jax.nn.log_softmax(linear(head, rms(norm, h)), axis=-1)
        return -jnp.take_along_axis(logits, y[..., None], axis=-1).mean()

    return llama


def linear(p: Weights, x: jax.Array) -> jax.Array:
    """Computes `torch.nn.Linear`, whose weight is [out, in]."""
    return x @ p["weight"].T


def weights_of(state: Mapping[str, Any]) -> list[Weights]:
    """Returns nested dicts for the first arguments, from weights by their torch names."""
    nested: dict[str, Any] = {}
    for name, value in state.items():
        at = nested
        *path, last = name.split(".")
        for key in path:
            at = at.setdefault(key, {})
        at[last] = jnp.asarray(value.detach().numpy())
    return [nested[name] for name in ("embed", "head", "layers", "norm")]
