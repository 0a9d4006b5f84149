"""Attention: one decomposition for its masks and scores, a tiled reference, code by hand."""

from __future__ import annotations

from typing import Any

from stack.hosted import Kernel, op
from stack.ir.types import TensorType
from stack.ops.attention import reference
from stack.ops.attention.rule import check

_RULE = "... h s d, ... g t d, ... g t e"


def _not_flash(q: TensorType, k: TensorType, v: TensorType, **attributes: Any) -> str:
    """What the kernel in `flash_triton` has no code for."""
    if q.rank != 4 or q.shape[-1] not in (64, 128) or v.shape[-1] != q.shape[-1]:
        return "it takes [b, h, s, d] with heads of 64 or 128"
    if q.shape[-2] != k.shape[-2]:
        return "it takes as many keys as queries"
    if q.dtype is not k.dtype or q.dtype is not v.dtype:
        return "it takes one element type"
    odd = [n for n in ("window", "softcap", "scale") if attributes[n]]
    return f"it has no {', '.join(odd)}" if odd else ""


@op(
    "attention.attention",
    rule=f"{_RULE} -> ... h s e",
    reference=reference.attention,
    kernels=(
        Kernel(
            "cuda",
            "stack.ops.attention.flash_triton:launched",
            "flash",
            ("bf16", "f16"),
            _not_flash,
        ),
    ),
    autocast="low",
)
def attention(
    np,
    q,
    k,
    v,
    *,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 0.0,
):
    """softmax(scale q k^T) v for each head: Vaswani et al., "Attention is all you need", 2017.

    `q [..., h, s, d]`, `k [..., g, t, d]`, `v [..., g, t, e]` of one float type; each of the g
    heads of keys serves h / g heads of queries. Scores, and their sums, are f32 at least.

    Attributes: `causal` hides keys after the query, where the last query stands at the last key;
    `window` all but the last that many up to it; `softcap` c makes a score x c tanh(x / c); `scale`
    of 0 is 1 / sqrt(d).
    """
    return _attention(np, q, k, v, causal, window, softcap, scale)


@op(
    "attention.with_sinks",
    rule=f"{_RULE}, h -> ... h s e",
    reference=reference.with_sinks,
    autocast="low",
)
def with_sinks(np, q, k, v, sinks, *, causal: bool = True, window: int = 0, scale: float = 0.0):
    """Attention in which each head has one more score, of nothing: Xiao et al., 2023.

    `sinks [h]`; the rest as for `attention`.
    """
    return _attention(np, q, k, v, causal, window, 0.0, scale, sinks=sinks)


@op(
    "attention.with_alibi",
    rule=f"{_RULE}, h -> ... h s e",
    reference=reference.with_alibi,
    autocast="low",
)
def with_alibi(np, q, k, v, slopes, *, causal: bool = True, window: int = 0, scale: float = 0.0):
    """Attention whose scores fall with the distance: Press, Smith and Lewis, 2021.

    `slopes [h]`: a score loses the slope times the distance of its key; the rest as for
    `attention`.
    """
    return _attention(np, q, k, v, causal, window, 0.0, scale, slopes=slopes)


def _attention(np, q, k, v, causal, window, softcap, scale, slopes=None, sinks=None):
    (h, s, d), (g, t) = q.shape[-3:], k.shape[-3:-1]
    check(h, g, s, t, causal, window)
    wide = np.result_type(q, np.float32)
    grouped = q.reshape(-1, g, h // g, s, d)
    keys, values = k.reshape(-1, g, t, d), v.reshape(-1, g, t, v.shape[-1])
    scores = np.einsum("bgrsd,bgtd->bgrst", grouped, keys, dtype=wide) * (scale or d**-0.5)
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    row, column = np.arange(s)[:, None] + (t - s), np.arange(t)[None, :]
    if slopes is not None:
        distance = (column - row).astype(wide)
        scores = scores + slopes.astype(wide).reshape(g, h // g, 1, 1) * distance
    if causal:
        scores = np.where(column <= row, scores, -np.inf)
    if window:
        scores = np.where(row - column < window, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
        sink = sinks.astype(wide).reshape(1, g, h // g, 1, 1)
        top = np.maximum(top, sink)
    weights = np.exp(scores - top)
    total = np.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - top)
    shares = (weights / total).astype(v.dtype)
    out = np.einsum("bgrst,bgte->bgrse", shares, values, dtype=wide)
    return out.reshape(*q.shape[:-1], v.shape[-1]).astype(q.dtype)
