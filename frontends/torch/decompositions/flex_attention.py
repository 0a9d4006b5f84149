"""Decomposes `flex_attention`, and inlines marked regions, which torch keeps as graphs.

The score and mask functions of `flex_attention` take a single score. `vmap` over batch, head, row
and column extends them to all scores. The blocks of a block mask only repeat its function, so they
are ignored, as in eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stack.frameworks.torch_private import items_as_indices
from stack.frontends.torch.decompositions.attention import as_autocast, repeated_heads, scores_of
from stack.frontends.torch.tensors.autocast import without_autocast

_INDICES = 4  # batch, head, row, column


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor],
    block_mask: Sequence[Any], scale: float, options: dict[str, Any],
    score_values: Sequence[Any] = (), mask_values: Sequence[Any] = (),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the attended values `[b, h, m, d]`, and base-2 logarithms of row sum and maximum.

    Args:
        query, key, value: `[b, h, m, e]`, `[b or 1, g, n, e]` and `[b or 1, g, n, d]`, where g
            divides h.
        score_mod: maps (score, batch, head, row, column, *score_values) to a new score.
        block_mask: its last item is a function of (batch, head, row, column, *mask_values) that is
            true for visible scores.
        options: kernel options; no effect on values.
    """
    query, key, value = as_autocast(query, key, value)
    with without_autocast(query.device):
        key, value = (repeated_heads(x, query.shape[1]) for x in (key, value))
        scores = scores_of(query, key) * scale
        places = [torch.arange(n, device=scores.device) for n in scores.shape]
        with items_as_indices():
            changed = _over_places(score_mod, 1, len(score_values))(scores, *places, *score_values)
            seen = _over_places(block_mask[-1], 0, len(mask_values))(*places, *mask_values)
        scores = torch.where(seen, changed.to(scores.dtype), -math.inf)
        weights: Tensor = torch.ops.aten._safe_softmax(scores, -1)
        made = _laid_out_as(weights.to(value.dtype) @ value, query)
        return made, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)


def _over_places(fn: Callable[..., Tensor], scores: int, others: int) -> Callable[..., Tensor]:
    """Extends a function of one score and its indices to all scores, by `vmap`."""
    for axis in reversed(range(_INDICES)):
        places = [0 if i == axis else None for i in range(_INDICES)]
        fn = torch.vmap(fn, in_dims=(*[0] * scores, *places, *[None] * others))
    return fn


def _laid_out_as(x: Tensor, like: Tensor) -> Tensor:
    """Copies a tensor to the axis order in memory of another, but with the last axis innermost."""
    last = x.dim() - 1
    order = [*sorted(range(last), key=like.stride, reverse=True), last]
    back = sorted(range(x.dim()), key=order.__getitem__)
    return x.permute(order).contiguous().permute(back)


def _inline(graph: Callable[..., Any], _: Any, *operands: Any) -> Any:
    """Inlines `invoke_subgraph`, a region compiled once; our passes find equal code themselves."""
    return graph(*operands)


WRITTEN: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.flex_attention: _flex_attention,
    torch.ops.higher_order.invoke_subgraph: _inline,
}
