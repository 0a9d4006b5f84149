"""Margin losses: targets end at the first -1, and gaps that are 0 or nan add nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stack

Tensor = torch.Tensor
Program = Callable[..., Any]


def from_torch(fn: Program, *args: Tensor) -> Program:
    torch._dynamo.reset()
    return torch.compile(fn, backend="stack", fullgraph=True, dynamic=False)


ENTRIES = pytest.mark.parametrize("entry", [stack.compile, from_torch], ids=["stack", "torch"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)

ROWS = torch.tensor([
    [1, 0, -1, 0, 0], [0, 1, -1, 0, 0], [1, -1, 0, 0, 0], [3, 2, -1, 4, 4], [0, -1, 2, 2, 2],
    [3, 0, 2, -1, -1], [-1, 1, 1, 1, 1], [4, 3, 2, 1, 0], [2, 2, -1, 3, 3],
])  # fmt: skip


def agree(entry: Program, program: Program, x: Tensor, target: Tensor) -> None:
    """Values and gradients are eager's."""
    given = [x.clone().requires_grad_() for _ in range(2)]
    found, want = entry(program, given[0], target)(given[0], target), program(given[1], target)
    torch.testing.assert_close(found, want)
    for losses in (found, want):
        total = losses if isinstance(losses, Tensor) else sum(loss.sum() for loss in losses)
        total.backward()
    torch.testing.assert_close(given[0].grad, given[1].grad)


def multilabel(x: Tensor, target: Tensor) -> list[Tensor]:
    return [
        *(F.multilabel_margin_loss(x, target, reduction=r) for r in ("mean", "sum", "none")),
        *(F.multilabel_margin_loss(x[i], target[i]) for i in (0, 3)),
        torch.nn.MultiLabelMarginLoss(reduction="sum")(x * 2, target),
    ]


@pytest.mark.each
@ENTRIES
@DTYPES
def test_multilabel_margin_loss(entry: Program, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(len(ROWS), 5, dtype=dtype)
    x[0] = torch.tensor([1.0, 2.0, 3.0, 0.0, 1.0])  # gaps of exactly 0
    agree(entry, multilabel, x, ROWS)


def multiclass(x: Tensor, target: Tensor) -> list[Tensor]:
    weight = torch.linspace(0.5, 2, 5, dtype=x.dtype)
    return [
        *(F.multi_margin_loss(x, target, reduction=r) for r in ("mean", "sum", "none")),
        F.multi_margin_loss(x, target, p=2, weight=weight),
        F.multi_margin_loss(x, target, margin=0.3, weight=weight, reduction="none"),
        F.multi_margin_loss(x[1], target[1]),
    ]


@pytest.mark.each
@ENTRIES
@DTYPES
def test_multi_margin_loss(entry: Program, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=dtype)
    x[0] = torch.tensor([1.0, 2.0, 3.0, 0.0, 1.0])
    agree(entry, multiclass, x, torch.tensor([0, 1, 2, 3, 4, 0]))


@ENTRIES
def test_nan_scores_add_nothing(entry: Program) -> None:
    x = torch.tensor([[0.3, math.nan, 0.5, -0.2, 0.1]])

    def program(x: Tensor, target: Tensor) -> list[Tensor]:
        return [F.multilabel_margin_loss(x, target), F.multi_margin_loss(x, target[:, 0])]

    agree(entry, program, x, torch.tensor([[0, 2, -1, 1, 1]]))


@ENTRIES
def test_other_losses_of_classes_are_eagers(entry: Program) -> None:
    """These are not written out: their decompositions hold."""

    def program(x: Tensor, target: Tensor) -> list[Tensor]:
        signs = (target % 2) * 2.0 - 1
        return [
            F.hinge_embedding_loss(x, signs),
            F.soft_margin_loss(x, signs),
            F.multilabel_soft_margin_loss(x, (signs + 1) / 2),
            F.margin_ranking_loss(x, x.flip(0), signs, margin=0.2),
            F.triplet_margin_loss(x, x.flip(0), x.roll(1, 1)),
        ]

    torch.manual_seed(0)
    agree(entry, program, torch.randn(len(ROWS), 5), ROWS)
