"""Programs with dependent reductions over one axis, as a user of JAX writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from stream_inputs import D, H, M, N

PROGRAMS: dict[str, Callable[..., Any]] = {}
SCALE = 1 / math.sqrt(D)


def program(f: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[f.__name__] = f
    return f


def pooled(s: Any, v: Any) -> Any:
    return jax.nn.softmax(s, -1) @ v


def scores(q: Any, k: Any) -> Any:
    return jnp.einsum("bhqd,bhkd->bhqk", q, k) * SCALE


def lines() -> tuple[Any, Any]:
    return jnp.arange(M)[:, None], jnp.arange(N)[None, :]


@program
def plain(q, k, v):
    return pooled(scores(q, k), v)


@program
def causal(q, k, v):
    return pooled(jnp.where(jnp.tril(jnp.ones((M, N), bool)), scores(q, k), -jnp.inf), v)


@program
def alibi(q, k, v):
    i, j = lines()
    slopes = jnp.array([2.0 ** -(h + 1) for h in range(H)])
    return pooled(scores(q, k) + slopes[:, None, None] * (j - i), v)


@program
def softcap(q, k, v):
    return pooled(20 * jnp.tanh(scores(q, k) / 20), v)


@program
def window(q, k, v):
    i, j = lines()
    return pooled(jnp.where((j <= i) & (i - j < 4), scores(q, k), -jnp.inf), v)


@program
def grouped(q, k, v):
    return pooled(scores(q, jnp.repeat(k, 2, 1)), jnp.repeat(v, 2, 1))


@program
def document(q, k, v, a, b):
    mask = a[:, None, :, None] == b[:, None, None, :]
    return pooled(jnp.where(mask, scores(q, k), -jnp.inf), v)


@program
def bias(q, k, v, b):
    return pooled(scores(q, k) + b, v)


@program
def sigmoid(q, k, v):
    return jax.nn.sigmoid(scores(q, k) - math.log(65)) @ v


@program
def learned(q, k, v, table):
    i, j = lines()
    return pooled(scores(q, k) + table[:, j - i + M - 1], v)


@program
def differential(q, k, q2, k2, v):
    first, second = jax.nn.softmax(scores(q, k), -1), jax.nn.softmax(scores(q2, k2), -1)
    return (first - 0.3 * second) @ v


@program
def with_lse(q, k, v):
    s = scores(q, k)
    return pooled(s, v), jax.nn.logsumexp(s, -1)


@program
def by_lse(q, k, v):
    s = scores(q, k)
    return jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)) @ v


@program
def bilinear(x, w, y):
    return jax.nn.logsumexp(x @ w @ y.T, -1)


@program
def linear_loss(h, w, t):
    logits = jax.nn.log_softmax(h @ w.T)
    return -jnp.take_along_axis(logits, t[:, None], 1).mean()


@program
def softmax(x):
    return jax.nn.softmax(x, -1)


@program
def log_softmax(x):
    return jax.nn.log_softmax(x, -1)


@program
def lse(x):
    return jax.nn.logsumexp(x, -1)


@program
def loss(x, t):
    return -jnp.take_along_axis(jax.nn.log_softmax(x), t[:, None], 1).mean()


@program
def layer(x, g, b):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * g + b


@program
def rms(x, g):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g


@program
def variance(x):
    return x.var(-1, ddof=1)


@program
def third_moment(x):
    return ((x - x.mean(-1, keepdims=True)) ** 3).mean(-1)


@program
def entropy(x):
    return -(jax.nn.softmax(x, -1) * jax.nn.log_softmax(x, -1)).sum(-1)


@program
def kl(x, y):
    p, q = jax.nn.log_softmax(x, -1), jax.nn.log_softmax(y, -1)
    return (jnp.exp(p) * (p - q)).sum(-1)


@program
def decayed(s, a, v):
    gaps = a[:, :M, None] - a[:, None, :]
    i, j = lines()
    return (s * jnp.exp(jnp.where(j > i, -jnp.inf, gaps))) @ v


@program
def ties(x):
    top = x.max(-1, keepdims=True)
    return jnp.exp(x - top).sum(-1), (x == top).sum(-1)


@program
def softmin(x, v):
    e = jnp.exp(x.min(-1, keepdims=True) - x)
    return (e @ v) / e.sum(-1, keepdims=True)


@program
def expected_variance(x, v):
    p = jax.nn.softmax(x, -1)
    mean = (p * v).sum(-1, keepdims=True)
    return (p * (v - mean) ** 2).sum(-1)


@program
def standardized(x, w):
    return ((x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True, ddof=1)) @ w
