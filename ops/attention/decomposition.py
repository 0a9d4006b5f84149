"""Attention in NumPy: scores, a program on them, softmax, and the matmul with the values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from stack.errors import RuleError
from stack.ops.attention.programs import Place, Program, may_hide_all, scored, spread
from stack.ops.attention.rule import check

LEAST = 0.5  # replaces an empty sum of exponentials; a sum that is not empty is at least exp(0)


def attend(
    np: Any,
    program: Program,
    q: Any,
    k: Any,
    v: Any,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    more: Sequence[tuple[Any, Any]] = (),
) -> tuple[Any, Any]:
    """Returns the result [..., h, s, e], and the log-sum-exp of scores [..., h, s].

    `q [..., h, s, d]`, `k [..., g, t, d]`, `v [..., g, t, e]`; h / g heads of queries share keys.
    `more` are pairs of further query and key features, whose scores are added.
    """
    scores, spreads = scores_of(np, program, q, k, operands, attributes, more)
    top = np.max(scores, axis=-1, keepdims=True)
    sink = None
    if program.sink is not None:
        sink = program.sink(np, *spreads)
        top = np.maximum(top, sink)
    hides_all = may_hide_all(program, q.shape[-2], k.shape[-2], attributes)
    if hides_all:
        top = np.maximum(top, lowest(np, top))
    weights = np.exp(scores - top)
    total = np.sum(weights, axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - top)
    if hides_all:
        total = np.maximum(total, LEAST)
    shares = (weights / total).astype(v.dtype)
    out = np.einsum("bgrst,bgte->bgrse", shares, grouped(v), dtype=scores.dtype)
    out = out.reshape(*q.shape[:-1], v.shape[-1]).astype(q.dtype)
    return out, (top + np.log(total)).reshape(*q.shape[:-1])


def lowest(np: Any, x: Any) -> float:
    """The least finite number of a type, used as the maximum of no scores: exp(-inf - it) is 0.

    A larger number would make finite scores below it vanish.
    """
    return -sys.float_info.max if x.dtype == np.float64 else -(2.0**128 - 2.0**104)


def scores_of(
    np: Any,
    program: Program,
    q: Any,
    k: Any,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    more: Sequence[tuple[Any, Any]] = (),
) -> tuple[Any, list[Any]]:
    """Returns scores [b, g, r, s, t] after the program, and its operands with those axes."""
    (h, s, d), (g, t) = q.shape[-3:], k.shape[-3:-1]
    check(s, t, attributes["causal"], attributes["window"])
    wide = np.result_type(q, np.float32)
    scale = attributes["scale"] or d**-0.5
    products = [
        np.einsum(
            "bgrsd,bgtd->bgrst",
            x.reshape(-1, g, h // g, s, x.shape[-1]),
            grouped(y),
            dtype=wide,
        )
        for x, y in ((q, k), *more)
    ]
    scores = sum(products[1:], start=products[0]) * scale
    spreads = [
        spread(np, axes, x, g, h // g, wide)
        for axes, x in zip(program.operands.values(), operands, strict=True)
    ]
    place = Place(np.arange(s)[:, None] + (t - s), np.arange(t)[None, :], t)
    return scored(np, program, scores, place, spreads, attributes), spreads


def grouped(x: Any) -> Any:
    """Reshapes [..., g, t, d] so that all leading axes are one."""
    return x.reshape(-1, *x.shape[-3:])


def gradient(
    np: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, told: Any, told_lse: Any, attributes: Any
) -> tuple[Any, Any, Any]:
    """Gradients from weights recomputed from `lse`: Dao, "FlashAttention-2", 2023.

    `told` and `told_lse` are the gradients of the results. With the weights P and
    D = sum(told * out) of a row, the gradient of a score is P (told v^T - D + told_lse).
    """
    (h, s, d), g = q.shape[-3:], k.shape[-3]
    wide = np.result_type(q, np.float32)
    scale, cap = attributes["scale"] or d**-0.5, attributes["softcap"]

    def by_group(x: Any, *tail: Any) -> Any:
        return x.astype(wide).reshape(-1, g, h // g, s, *tail)

    scores, _ = scores_of(np, Program(), q, k, (), attributes)
    weights = np.exp(scores - by_group(lse, 1))
    worth = by_group(told, v.shape[-1])
    row = np.sum(worth * by_group(out, v.shape[-1]), axis=-1, keepdims=True)
    to_weights = np.einsum("bgrse,bgte->bgrst", worth, grouped(v).astype(wide))
    to_scores = weights * (to_weights - row + by_group(told_lse, 1)) * scale
    if cap:
        capped = np.where(weights > 0, scores / cap, 0.0)  # hidden scores are -inf
        to_scores = to_scores * (1 - capped * capped)
    keys, queries = grouped(k).astype(wide), by_group(q, d)
    to_q = np.einsum("bgrst,bgtd->bgrsd", to_scores, keys)
    to_k = np.einsum("bgrst,bgrsd->bgtd", to_scores, queries)
    to_v = np.einsum("bgrst,bgrse->bgte", weights, worth)
    return (
        to_q.reshape(*q.shape).astype(q.dtype),
        to_k.reshape(*k.shape).astype(k.dtype),
        to_v.reshape(*v.shape).astype(v.dtype),
    )


def gathered(np: Any, pool: Any, table: Any, lengths: Any) -> Any:
    """Gathers pages [p, n, g, d] of sequences [..., m] to keys [..., g, m * n, d].

    Entries of the table beyond a sequence's keys may have any value.
    """
    _, n, g, d = pool.shape
    count = table.shape[-1]
    is_used = np.arange(count).astype(lengths.dtype) * n < lengths[..., None]
    pages = np.take(pool, np.where(is_used, table, 0), axis=0)  # [..., m, n, g, d]
    return pages.reshape(*table.shape[:-1], count * n, g, d).swapaxes(-3, -2)


def rotated(np: Any, x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Rotates pairs among the first features of `x [..., h, s, d]`, by angles given as cosines and
    sines. Raises RuleError if d is odd or has fewer pairs than `cos`."""
    d, half = x.shape[-1], cos.shape[-1]
    if d % 2:
        raise RuleError(f"'x' has heads of {d} features: rotated pairs need an even number")
    if 2 * half > d:
        raise RuleError(f"'cos' rotates {half} pairs, 'x' has heads of {d} features")
    wide = np.result_type(x, np.float32)
    held = x.astype(wide)
    cos, sin = (a.astype(wide)[..., None, :, :] for a in (cos, sin))
    if interleaved:
        first, second = held[..., 0 : 2 * half : 2], held[..., 1 : 2 * half : 2]
    else:
        first, second = held[..., :half], held[..., half : 2 * half]
    turned = first * cos - second * sin, first * sin + second * cos
    if interleaved:
        pairs = np.concatenate([a[..., None] for a in turned], axis=-1)
        turned = (pairs.reshape(*x.shape[:-1], 2 * half),)
    return np.concatenate([*turned, held[..., 2 * half :]], axis=-1).astype(x.dtype)
