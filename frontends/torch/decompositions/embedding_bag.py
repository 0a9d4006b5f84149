"""Decomposition of `torch.nn.functional.embedding_bag`: sums, means, maxima of table rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_SHORT = (torch.float16, torch.bfloat16)


def _embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
    sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Computes `F.embedding_bag`: reduces the table rows of each bag.

    Calls torch's op if that writes to the table (`max_norm`), if the gradient of the table is
    sparse or scaled by frequency, and if weights and indices are swapped (the old order).
    """
    has_other_gradient = weight.requires_grad and (sparse or scale_grad_by_freq)
    if max_norm is not None or has_other_gradient or input.is_floating_point():
        return F.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse,
            per_sample_weights, include_last_offset, padding_idx,
        )  # fmt: skip
    rows = F.embedding(input, weight)
    rows = rows.float() if weight.dtype in _SHORT else rows  # so rounded once, as in torch
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    seen: Tensor | None = None
    if padding_idx is not None:
        seen = input != padding_idx % weight.shape[0]
    if offsets is None:
        made = _of_lines(rows, seen, mode)
    else:
        bags, count = _bags(offsets, input.shape[0]), offsets.shape[0]
        made = _of_ranges(rows, seen, bags, count, mode)[: count - include_last_offset]
    return made.to(weight.dtype)


def _of_lines(rows: Tensor, seen: Tensor | None, mode: str) -> Tensor:
    """Reduces bags of equal length: `rows` is [bags, length, width].

    `seen`: false for rows to skip, the padding; None if all count.
    """
    if mode == "max":
        if not rows.shape[1]:
            return rows.new_zeros(rows.shape[0], rows.shape[2])
        if seen is None:
            return rows.max(1).values
        best = rows.masked_fill(~seen[..., None], -torch.inf).max(1).values
        return torch.where(seen.any(1, keepdim=True), best, 0)
    total = (rows if seen is None else rows.masked_fill(~seen[..., None], 0)).sum(1)
    if mode == "sum":
        return total
    if seen is None:
        return total / max(rows.shape[1], 1)
    return total / seen.sum(1, keepdim=True).clamp(min=1)


def _bags(offsets: Tensor, count: int) -> Tensor:
    """Returns the bag of each index: the number of bags that begin at or before it, minus one."""
    begins = torch.zeros(count + 1, dtype=torch.int64, device=offsets.device)
    ones = torch.ones_like(offsets, dtype=torch.int64)
    return begins.index_add(0, offsets, ones)[:count].cumsum(0) - 1


def _of_ranges(rows: Tensor, seen: Tensor | None, bags: Tensor, count: int, mode: str) -> Tensor:
    """Reduces bags of any length: `rows` is [indices, width], `bags` has the bag of each row.

    `seen`: false for rows to skip, the padding; None if all count.
    """
    shape = (count, rows.shape[1])
    if mode == "max":
        return _largest(rows, seen, bags, shape)
    kept = rows if seen is None else rows.masked_fill(~seen[:, None], 0)
    total = rows.new_zeros(shape).index_add(0, bags, kept)
    if mode == "sum":
        return total
    one = torch.ones_like(bags) if seen is None else seen.long()
    sizes = bags.new_zeros(count).index_add(0, bags, one)
    return total / sizes.clamp(min=1)[:, None]


def _largest(rows: Tensor, seen: Tensor | None, bags: Tensor, shape: tuple[int, int]) -> Tensor:
    """Returns the first maximum in each bag, which alone gets a gradient; 0 for an empty bag."""
    count = rows.shape[0]
    if not count:
        return rows.new_zeros(shape)
    places = bags[:, None].expand_as(rows)
    known = rows.detach()
    if seen is not None:
        known = known.masked_fill(~seen[:, None], -torch.inf)
    best = known.new_full(shape, -torch.inf).scatter_reduce(0, places, known, "amax")
    is_best = (known == best[bags]) | known.isnan()
    is_best = is_best if seen is None else is_best & seen[:, None]
    line = torch.arange(count, device=rows.device)[:, None]
    ranked = torch.where(is_best, line, count)
    first = ranked.new_full(shape, count).scatter_reduce(0, places, ranked, "amin")
    return torch.where(first < count, rows.gather(0, first.clamp(max=count - 1)), 0)


WRITTEN: dict[Any, Callable[..., Any]] = {F.embedding_bag: _embedding_bag}
