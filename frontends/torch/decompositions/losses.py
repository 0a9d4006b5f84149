"""Losses for which torch's decomposition differs from eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def multilabel_margin_loss(
    x: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Computes the hinge of each target class against all others; targets end at the first -1.

    Torch's decomposition treats entries after that end as targets of class 0.

    Args:
        x: scores, `[classes]` or `[batch, classes]`.
        target: classes, of the same shape.

    Returns:
        a number, or one for each row if the reduction is "none".

    Raises:
        RuntimeError: for shapes that do not match, raised by torch.
    """
    reduction = _reduction(size_average, reduce, reduction)
    if x.shape != target.shape or not 1 <= x.dim() <= 2 or not x.shape[-1]:
        return F.multilabel_margin_loss(x, target, reduction=reduction)
    count = x.shape[-1]
    is_given = (target == -1).cumsum(-1) == 0
    index = torch.where(is_given, target, 0)
    # hinges are only counted against classes that are not targets
    is_target = torch.zeros_like(target).scatter_add(-1, index, is_given.to(target.dtype)) > 0
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    scores = wide.gather(-1, index)
    gaps = 1 - scores.unsqueeze(-1) + wide.unsqueeze(-2)
    counts = is_given.unsqueeze(-1) & ~is_target.unsqueeze(-2) & (gaps > 0)
    losses = torch.where(counts, gaps, 0).sum((-1, -2)) / count
    return _reduced(losses, reduction).to(x.dtype)


def multi_margin_loss(
    x: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Computes the hinge, or its square, of the target class against all others.

    A gap of 0 or nan adds nothing and has no gradient, as in eager, unlike in torch's
    decomposition.

    Args:
        x: scores, `[classes]` or `[batch, classes]`.
        target: a class, or one for each row.
        p: 1 for the hinge, 2 for its square.
        weight: a factor for each target class.

    Returns:
        a number, or one for each row if the reduction is "none".

    Raises:
        RuntimeError: for shapes that do not match, raised by torch.
    """
    reduction = _reduction(size_average, reduce, reduction)
    rows = x if x.dim() == 2 else x.unsqueeze(0)
    classes = target.reshape(-1, 1)
    is_sound = 1 <= x.dim() <= 2 and x.shape[-1] and classes.shape[0] == rows.shape[0]
    if not is_sound or p not in (1, 2) or target.dim() > 1 or target.dtype is not torch.int64:
        return F.multi_margin_loss(x, target, p, margin, weight, reduction=reduction)
    wide = rows.float() if x.dtype in (torch.bfloat16, torch.float16) else rows
    gaps = margin - wide.gather(1, classes) + wide
    is_other = torch.arange(x.shape[-1], device=x.device) != classes
    gaps = torch.where(is_other & (gaps > 0), gaps, 0)
    losses = gaps if p == 1 else gaps * gaps
    if weight is not None:
        losses = losses * weight[classes]
    losses = _reduced(losses.sum(1) / x.shape[-1], reduction).to(x.dtype)
    return losses if reduction != "none" or x.dim() == 2 else losses.squeeze(0)


def _reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Returns the reduction of torch's deprecated arguments, if they are given."""
    if size_average is None and reduce is None:
        return reduction
    return "none" if reduce is False else "sum" if size_average is False else "mean"


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


WRITTEN: dict[Any, Callable[..., Any]] = {
    F.multi_margin_loss: multi_margin_loss,
    F.multilabel_margin_loss: multilabel_margin_loss,
}
