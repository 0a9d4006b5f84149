"""JAX programs around one transformer block: forward, four layers by scan, a step of SGD.

They are in bf16 on a GPU, in f32 on a CPU, where XLA lacks some of their bf16 matmuls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stack.demos.suite import Setting

Target = tuple[Callable[..., Any], tuple[Any, ...]]
LAYERS, RATE, HIDDEN = 4, 0.1, -1e9


def norm(x: Any, gain: Any) -> Any:
    """A layer norm in f32, without a bias."""
    y = x.astype(jnp.float32)
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return y.astype(x.dtype) * gain


def block(x: Any, w: dict[str, Any]) -> Any:
    """A block with causal attention in heads of 64: `x` is [batch, tokens, width]."""
    batch, tokens, width = x.shape

    def heads(t: Any) -> Any:
        return t.reshape(batch, tokens, width // 64, 64).transpose(0, 2, 1, 3)

    q, k, v = map(heads, jnp.split(norm(x, w["gain1"]) @ w["qkv"], 3, -1))
    scores = (q @ k.transpose(0, 1, 3, 2)).astype(jnp.float32) / 8
    scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, HIDDEN)
    seen = jax.nn.softmax(scores, -1).astype(x.dtype) @ v
    x = x + seen.transpose(0, 2, 1, 3).reshape(x.shape) @ w["out"]
    return x + jax.nn.gelu(norm(x, w["gain2"]) @ w["up"]) @ w["down"]


def layers(x: Any, ws: dict[str, Any]) -> Any:
    return lax.scan(lambda held, w: (block(held, w), None), x, ws)[0]


def sgd_step(x: Any, w: dict[str, Any]) -> Any:
    """The loss, and the weights after a step."""

    def loss(w: dict[str, Any]) -> Any:
        return jnp.square(block(x, w).astype(jnp.float32)).mean()

    value, gradients = jax.value_and_grad(loss)(w)
    return value, jax.tree.map(lambda p, g: p - RATE * g, w, gradients)


def _target(fn: Callable[..., Any], stacked: tuple[int, ...] = ()) -> Callable[[Setting], Target]:
    def make(setting: Setting) -> Target:
        batch, tokens, width = (4, 1024, 1024) if setting.large else (1, 64, 128)
        rng = np.random.default_rng(0)
        device = jax.devices("gpu" if setting.large else "cpu")[0]
        dtype = jnp.bfloat16 if setting.large else jnp.float32

        def draw(*shape: int, scale: float = 1.0) -> Any:
            array = rng.standard_normal(shape, dtype=np.float32) * scale
            return jax.device_put(jnp.asarray(array, dtype), device)

        scale = width**-0.5
        weights = {
            "qkv": draw(*stacked, width, 3 * width, scale=scale),
            "out": draw(*stacked, width, width, scale=scale),
            "up": draw(*stacked, width, 4 * width, scale=scale),
            "down": draw(*stacked, 4 * width, width, scale=scale / 2),
            **{name: 1 + draw(*stacked, width, scale=0.1) for name in ("gain1", "gain2")},
        }
        return fn, (draw(batch, tokens, width), weights)

    return make


PROGRAMS: dict[str, Callable[[Setting], Target]] = {
    "block_jax": _target(block),
    "layers_scan": _target(layers, (LAYERS,)),
    "sgd_step": _target(sgd_step),
}
