"""Attention for `stackc bench gpu`: variants in plain matmul, softmax and matmul, and rivals.

No variant uses an attention call: each is written from its formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from stack.demos.gpu_masks import MASKS, scaled
from stack.measure.gpu_program import GpuProgram, Rival

Tensor = torch.Tensor
TUNED = "max-autotune-no-cudagraphs"  # the best mode of FlexAttention
WINDOW, DOCUMENTS, CAP, MIX = 1024, 8, 20.0, 0.35


def positions(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the row and column numbers of a score matrix, for broadcasting."""
    length = scores.shape[-1]
    line = torch.arange(length, device=scores.device)
    return line[:, None], line[None, :]


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(scaled(q, k), dim=-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = scaled(q, k)
    row, column = positions(scores)
    return torch.softmax(scores.masked_fill(column > row, -math.inf), dim=-1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    scores = scaled(q, k)
    row, column = positions(scores)
    scores = scores + (slopes[:, None, None] * (column - row)).to(scores.dtype)
    return torch.softmax(scores.masked_fill(column > row, -math.inf), dim=-1) @ v


def softcap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.tanh(scaled(q, k) / CAP) * CAP
    row, column = positions(scores)
    return torch.softmax(scores.masked_fill(column > row, -math.inf), dim=-1) @ v


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = scaled(q, k)
    row, column = positions(scores)
    hidden = (column > row) | (row - column >= min(WINDOW, scores.shape[-1] // 2))
    return torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ v


def gqa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    share = q.shape[1] // k.shape[1]
    return causal(q, k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1))


def document(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    scores = scaled(q, k)
    row, column = positions(scores)
    other = ids[:, None, :, None] != ids[:, None, None, :]
    return torch.softmax(scores.masked_fill(other | (column > row), -math.inf), dim=-1) @ v


def differential(q: Tensor, k: Tensor, q2: Tensor, k2: Tensor, v: Tensor) -> Tensor:
    first, second = scaled(q, k), scaled(q2, k2)
    row, column = positions(first)
    first = torch.softmax(first.masked_fill(column > row, -math.inf), dim=-1)
    second = torch.softmax(second.masked_fill(column > row, -math.inf), dim=-1)
    return (first - MIX * second) @ v


def bias(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
    return torch.softmax(scaled(q, k) + added, dim=-1) @ v


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = scaled(q, k)
    row, column = positions(scores)
    weights = torch.sigmoid(scores - math.log(scores.shape[-1]))
    return weights.masked_fill(column > row, 0.0) @ v


def learned(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    scores = scaled(q, k)
    row, column = positions(scores)
    return torch.softmax(scores + table[:, column - row + scores.shape[-1] - 1], dim=-1) @ v


VARIANTS: dict[str, Callable[..., Tensor]] = {
    "causal": causal, "alibi": alibi, "softcap": softcap, "window": window, "gqa": gqa,
    "document": document, "differential": differential, "bias": bias, "sigmoid": sigmoid,
    "learned": learned, "full": full, **MASKS,
}  # fmt: skip


# ---- programs


def attention(
    variant: str = "causal",
    batch: int = 4,
    heads: int = 16,
    seq: int = 4096,
    width: int = 128,
    device: str = "cuda",
    dtype: str = "bfloat16",
) -> GpuProgram:
    """Returns one variant with its rivals. `gqa` has a quarter of the heads for keys and values."""
    kind = getattr(torch, dtype)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(kind)

    groups = heads // 4 if variant == "gqa" else heads
    q = draw(batch, heads, seq, width)
    k, v = draw(batch, groups, seq, width), draw(batch, groups, seq, width)
    args: tuple[Tensor, ...] = (q, k, v)
    split: tuple[int | None, ...] = (1, 1, 1)
    seen = 0.5 + 0.5 / seq  # the share of the score matrix that a mask keeps
    if variant in ("full", "bias", "learned"):
        seen = 1.0
    if variant == "window":
        reach = min(WINDOW, seq // 2)
        seen = (reach * seq - reach * (reach - 1) / 2) / seq**2
    if variant == "alibi":
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=device) / heads)
        args, split = (*args, slopes), (*split, 0)
    if variant == "document":
        bounds = torch.rand(batch, seq, device=device) < DOCUMENTS / seq
        ids = bounds.cumsum(1)
        args, split = (*args, ids), (*split, None)
        seen = document_share(ids)
    if variant == "differential":
        args, split = (q, k, draw(*q.shape), draw(*k.shape), v), (1,) * 5
    if variant == "bias":
        args, split = (*args, draw(heads, seq, seq)), (*split, 0)
    if variant == "learned":
        args, split = (*args, draw(heads, 2 * seq - 1)), (*split, 0)
    if variant in ("sink_column", "sink_floor"):
        args, split = (*args, draw(heads)), (*split, 0)
    scores = batch * heads * seq * seq * seen
    twice = variant == "differential"
    moved = sum(a.nbytes for a in args) + q.nbytes
    return GpuProgram(
        VARIANTS[variant],
        args,
        flops=(6 if twice else 4) * scores * width,
        bytes=moved,
        exps=(2 if twice else 1) * scores,
        split=split,
        join=1,
        parts=groups,
        rivals=_rivals(variant, args),
    )


def document_share(ids: Tensor) -> float:
    """Returns the share of the score matrix that a causal mask within documents keeps.

    `ids`: integers [batch, position], the number of the document of each position.
    """
    total = 0.0
    for row in ids:
        counts = torch.bincount(row).double()
        total += float((counts * (counts + 1) / 2).sum())
    return total / (ids.shape[0] * ids.shape[1] ** 2)


# ---- rivals


def _rivals(variant: str, args: tuple[Tensor, ...]) -> dict[str, Rival]:
    found: dict[str, Rival] = {}
    if variant in ("full", "causal", "gqa"):
        is_causal = variant != "full"
        found["sdpa-cudnn"] = Rival("library", lambda: _sdpa("CUDNN_ATTENTION", is_causal))
        found["sdpa-flash2"] = Rival("library", lambda: _sdpa("FLASH_ATTENTION", is_causal))
        found["hand-flash"] = Rival("hand", lambda: _hand(is_causal, args))
    if variant == "window":
        hidden = _window_bias
        found["sdpa-mask"] = Rival("library", lambda: _masked_sdpa(hidden))
    if variant == "bias":
        found["sdpa-mask"] = Rival("library", lambda: _masked_sdpa(lambda q, added: added[None]))
    if variant not in ("differential", "sigmoid") and not _has_sink(variant):
        found["flex"] = Rival("peer", lambda: _flex(variant, args))
        found["flex-max-autotune"] = Rival("peer", lambda: _flex(variant, args, TUNED))
    return found


def _has_sink(variant: str) -> bool:
    return variant in MASKS and variant != "finite_mask"


def _sdpa(backend: str, is_causal: bool) -> Callable[..., Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, backend)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(chosen):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=is_causal, enable_gqa=k.shape[1] != q.shape[1]
            )

    return run


def _window_bias(q: Tensor) -> Tensor:
    length = q.shape[-2]
    line = torch.arange(length, device=q.device)
    apart = line[:, None] - line[None, :]
    return ((apart >= 0) & (apart < min(WINDOW, length // 2)))[None, None]


def _masked_sdpa(mask: Callable[..., Tensor]) -> Callable[..., Tensor]:
    kept: list[Tensor] = []

    def run(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        if more:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q, *more))
        if not kept:
            kept.append(mask(q))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=kept[0])

    return run


def _hand(is_causal: bool, args: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """Times all of our attention kernels on these arguments, and returns the fastest."""
    from functools import partial

    from stack.measure.gpu_timing import measure
    from stack.ops.attention import flash_gluon
    from stack.ops.attention.flash_triton import CONFIGS, attention

    kernels: list[Callable[..., Tensor]] = [partial(flash_gluon.launched, causal=is_causal)]
    kernels += [partial(attention, causal=is_causal, config=c) for c in CONFIGS]
    return min(kernels, key=lambda kernel: measure(torch, lambda: kernel(*args[:3]), count=3))


def _flex(variant: str, args: tuple[Tensor, ...], mode: str | None = None) -> Callable[..., Tensor]:
    """Returns compiled FlexAttention, with its block mask built in advance."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, batch = args[0].shape[2], args[0].shape[0]
    reach = min(WINDOW, length // 2)

    def is_causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def in_window(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < reach)

    def in_document(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (args[3][b, q] == args[3][b, k])

    masks = {"window": in_window, "document": in_document}
    mask: Any = None
    if variant not in ("full", "bias", "learned"):
        rows = batch if variant == "document" else None
        rule = masks.get(variant, is_causal)
        device = str(args[0].device)
        mask = create_block_mask(rule, rows, None, length, length, device=device)
    compiled: Any = torch.compile(flex_attention, mode=mode, dynamic=False)

    def run(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        change = _score_change(variant, length, *more)
        grouped = k.shape[1] != q.shape[1]
        return compiled(q, k, v, score_mod=change, block_mask=mask, enable_gqa=grouped)

    return run


def _score_change(variant: str, length: int, *more: Tensor) -> Callable[..., Any] | None:
    def with_alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + more[0][h] * (k - q)

    def with_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.tanh(score / CAP) * CAP

    def with_bias(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + more[0][h, q, k]

    def with_table(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + more[0][h, k - q + length - 1]

    return {
        "alibi": with_alibi, "softcap": with_cap, "bias": with_bias, "learned": with_table,
    }.get(variant)  # fmt: skip
