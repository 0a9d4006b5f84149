"""Losses whose decomposition in torch is not what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def multilabel_margin_loss(
    x: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The hinge of each target class against all others; targets end at the first -1.

    Torch's decomposition counts what stands after that end as targets of class 0.

    Args:
        x: scores, `[classes]` or `[batch, classes]`.
        target: classes, of the same shape.

    Returns:
        a number, or one for each row where nothing is reduced.

    Raises:
        RuntimeError: for shapes that do not fit, as torch raises it.
    """
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if x.shape != target.shape or not 1 <= x.dim() <= 2 or not x.shape[-1]:
        return torch.nn.functional.multilabel_margin_loss(x, target, reduction=reduction)
    count = x.shape[-1]
    is_given = (target == -1).cumsum(-1) == 0
    index = torch.where(is_given, target, 0)
    # a class that is no target adds nothing
    is_target = torch.zeros_like(target).scatter_add(-1, index, is_given.to(target.dtype)) > 0
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    scores = wide.gather(-1, index)
    gaps = (1 - scores.unsqueeze(-1) + wide.unsqueeze(-2)).clamp_min(0)
    counts = is_given.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    losses = torch.where(counts, gaps, 0).sum((-1, -2)) / count
    if reduction == "mean":
        losses = losses.mean()
    elif reduction == "sum":
        losses = losses.sum()
    return losses.to(x.dtype)


WRITTEN: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.multilabel_margin_loss: multilabel_margin_loss
}
