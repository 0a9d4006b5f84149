"""`flex_attention` and marked regions of a program, which torch keeps as graphs, written out.

A score is changed, and masked, by functions of one score; here they are those of all scores, by
`vmap` over batch, head, row and column. The blocks of a block mask say nothing that its function
does not say: they are left aside, as eager leaves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from stack.frontends.torch_attention import as_autocast, repeated_heads, scores_of

_INDICES = 4  # batch, head, row, column


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor],
    block_mask: Sequence[Any], scale: float, options: dict[str, Any],
    score_values: Sequence[Any] = (), mask_values: Sequence[Any] = (),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The attended values `[b, h, m, d]`, and base-2 logarithms of each row: sum, highest.

    Args:
        query, key, value: `[b, h, m, e]`, `[b or 1, g, n, e]` and `[b or 1, g, n, d]`, where g
            divides h.
        score_mod: a changed score for (score, batch, head, row, column, *score_values).
        block_mask: its last is a function that says for (batch, head, row, column, *mask_values)
            whether a score is seen.
        options: what a kernel may choose; of no effect on values.
    """
    query, key, value = as_autocast(query, key, value)
    with torch.autocast(query.device.type, enabled=False):
        key, value = (repeated_heads(x, query.shape[1]) for x in (key, value))
        scores = scores_of(query, key) * scale
        places = [torch.arange(n, device=scores.device) for n in scores.shape]
        with TransformGetItemToIndex():
            changed = _over_places(score_mod, 1, len(score_values))(scores, *places, *score_values)
            seen = _over_places(block_mask[-1], 0, len(mask_values))(*places, *mask_values)
        scores = torch.where(seen, changed.to(scores.dtype), -math.inf)
        weights: Tensor = torch.ops.aten._safe_softmax(scores, -1)
        made = _laid_out_as(weights.to(value.dtype) @ value, query)
        return made, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)


def _over_places(fn: Callable[..., Tensor], scores: int, others: int) -> Callable[..., Tensor]:
    """A function of one score, its place and other values, as one of all scores and places."""
    for axis in reversed(range(_INDICES)):
        places = [0 if i == axis else None for i in range(_INDICES)]
        fn = torch.vmap(fn, in_dims=(*[0] * scores, *places, *[None] * others))
    return fn


def _laid_out_as(x: Tensor, like: Tensor) -> Tensor:
    """A tensor with its axes in memory in the order of another's, the last one innermost."""
    last = x.dim() - 1
    order = [*sorted(range(last), key=like.stride, reverse=True), last]
    back = sorted(range(x.dim()), key=order.__getitem__)
    return x.permute(order).contiguous().permute(back)


def _inline(graph: Callable[..., Any], _: Any, *operands: Any) -> Any:
    """`invoke_subgraph`: a region that is compiled once; passes find what is equal themselves."""
    return graph(*operands)


WRITTEN: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.flex_attention: _flex_attention,
    torch.ops.higher_order.invoke_subgraph: _inline,
}
