"""Programs with dependent reductions over one axis, as a user of torch writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from stream_inputs import D, H, M, N

PROGRAMS: dict[str, Callable[..., Any]] = {}
SCALE = 1 / math.sqrt(D)


def program(f: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[f.__name__] = f
    return f


def pooled(s: Any, v: Any) -> Any:
    return torch.softmax(s, -1) @ v


def scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-1, -2) * SCALE


def lines() -> tuple[Any, Any]:
    return torch.arange(M)[:, None], torch.arange(N)[None, :]


@program
def plain(q, k, v):
    return pooled(scores(q, k), v)


@program
def causal(q, k, v):
    mask = torch.tril(torch.ones(M, N, dtype=torch.bool))
    return pooled(scores(q, k).masked_fill(~mask, float("-inf")), v)


@program
def alibi(q, k, v):
    i, j = lines()
    slopes = torch.tensor([2.0 ** -(h + 1) for h in range(H)])
    return pooled(scores(q, k) + slopes[:, None, None] * (j - i), v)


@program
def softcap(q, k, v):
    return pooled(20 * torch.tanh(scores(q, k) / 20), v)


@program
def window(q, k, v):
    i, j = lines()
    return pooled(torch.where((j <= i) & (i - j < 4), scores(q, k), -torch.inf), v)


@program
def grouped(q, k, v):
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    return pooled(scores(q, k), v)


@program
def document(q, k, v, a, b):
    mask = a[:, None, :, None] == b[:, None, None, :]
    return pooled(scores(q, k).masked_fill(~mask, -torch.inf), v)


@program
def bias(q, k, v, b):
    return pooled(scores(q, k) + b, v)


@program
def sigmoid(q, k, v):
    return torch.sigmoid(scores(q, k) - math.log(65)) @ v


@program
def learned(q, k, v, table):
    i, j = lines()
    return pooled(scores(q, k) + table[:, j - i + M - 1], v)


@program
def differential(q, k, q2, k2, v):
    first, second = torch.softmax(scores(q, k), -1), torch.softmax(scores(q2, k2), -1)
    return (first - 0.3 * second) @ v


@program
def with_lse(q, k, v):
    s = scores(q, k)
    return pooled(s, v), torch.logsumexp(s, -1)


@program
def by_lse(q, k, v):
    s = scores(q, k)
    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v


@program
def bilinear(x, w, y):
    return torch.logsumexp(x @ w @ y.T, -1)


@program
def linear_loss(h, w, t):
    return F.cross_entropy(h @ w.T, t.long())


@program
def softmax(x):
    return torch.softmax(x, -1)


@program
def log_softmax(x):
    return torch.log_softmax(x, -1)


@program
def lse(x):
    return torch.logsumexp(x, -1)


@program
def loss(x, t):
    return F.cross_entropy(x, t.long())


@program
def layer(x, g, b):
    return F.layer_norm(x, (x.shape[-1],), g, b)


@program
def rms(x, g):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * g


@program
def variance(x):
    return x.var(-1)


@program
def third_moment(x):
    return ((x - x.mean(-1, keepdim=True)) ** 3).mean(-1)


@program
def entropy(x):
    return -(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)


@program
def kl(x, y):
    p, q = torch.log_softmax(x, -1), torch.log_softmax(y, -1)
    return (p.exp() * (p - q)).sum(-1)


@program
def decayed(s, a, v):
    gaps = a[:, :M, None] - a[:, None, :]
    i, j = lines()
    return (s * gaps.masked_fill(j > i, -torch.inf).exp()) @ v


@program
def ties(x):
    top = x.amax(-1, keepdim=True)
    return (x - top).exp().sum(-1), (x == top).sum(-1)


@program
def softmin(x, v):
    e = torch.exp(x.amin(-1, keepdim=True) - x)
    return (e @ v) / e.sum(-1, keepdim=True)


@program
def expected_variance(x, v):
    p = torch.softmax(x, -1)
    mean = (p * v).sum(-1, keepdim=True)
    return (p * (v - mean) ** 2).sum(-1)


@program
def standardized(x, w):
    return ((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)) @ w
