"""Training steps over nothing: no rows, no places, no channels; gradients that read no tangent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stack

ENTRIES = ("torch.compile", "stack.compile")
R = torch.randn
Parts = tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]


class Of(nn.Module):
    """A function of arguments and of one weight."""

    def __init__(self, fn: Callable[..., Any], *shape: int) -> None:
        super().__init__()
        self.fn, self.w = fn, nn.Parameter(R(*shape))

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(*args, self.w)


class GivesSaved(torch.autograd.Function):
    """Its gradients are a saved tensor, and a view of one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return (x * w).sum(0)

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return w.view_as(w), x


def loss(fn: Callable[..., Any], **options: Any) -> Callable[[], nn.Module]:
    return lambda: Of(lambda x, w: fn(x @ w, torch.zeros(0, 2), **options), 3, 2)


NONE = torch.zeros(0, dtype=torch.long)
CASES: dict[str, Parts] = {
    "rows": (lambda: nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7)), (R(0, 5),)),
    "rows in bf16": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7)).bfloat16(), (R(0, 5).bfloat16(),),
    ),
    "rows in f64": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.RMSNorm(7)).double(),
        (R(0, 5).double(),),
    ),
    "sequence": (lambda: nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7)), (R(2, 0, 5),)),
    "channels": (lambda: nn.Sequential(nn.Linear(5, 0), nn.Linear(0, 3)), (R(3, 5),)),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2)),
        (R(0, 3, 6, 6),),
    ),
    "transposed convolution": (lambda: nn.ConvTranspose1d(3, 4, 3), (R(0, 3, 6),)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)), (NONE.view(0, 4),)),
    "bag": (lambda: nn.EmbeddingBag(5, 3), (NONE.view(0, 4),)),
    "attention to nothing": (
        lambda: Of(lambda q, k, w: F.scaled_dot_product_attention(q @ w, k @ w, k), 4, 4),
        (R(2, 3, 4), R(2, 0, 4)),
    ),
    "softmax": (lambda: Of(lambda x, w: (x @ w).softmax(0), 3, 2), (R(0, 3),)),
    "a part": (lambda: Of(lambda x, w: (x[:0] @ w).sum() + w.sum(), 3, 2), (R(4, 3),)),
    "joined": (lambda: Of(lambda x, y, w: torch.cat([x, y]) @ w, 3, 2), (R(0, 3), R(4, 3))),
    "squares": (loss(F.mse_loss), (R(0, 3),)),
    "sum of squares": (loss(F.mse_loss, reduction="sum"), (R(0, 3),)),
    "smooth loss": (loss(F.smooth_l1_loss), (R(0, 3),)),
    "Huber loss": (loss(F.huber_loss, delta=0.5), (R(0, 3),)),
    "absolute loss": (loss(F.l1_loss), (R(0, 3),)),
    "logits": (loss(F.binary_cross_entropy_with_logits), (R(0, 3),)),
    "classes": (lambda: Of(lambda x, w: F.cross_entropy(x @ w, NONE), 3, 2), (R(0, 3),)),
    "saved": (lambda: Of(GivesSaved.apply, 4, 3), (R(4, 3),)),
    "saved nothing": (lambda: Of(GivesSaved.apply, 0, 3), (R(0, 3),)),
    "saved, computed": (lambda: Of(lambda x, w: GivesSaved.apply(x * 2, w * x), 4, 3), (R(4, 3),)),
}  # fmt: skip


def step(module: nn.Module, call: Any, given: tuple[torch.Tensor, ...]) -> list[Any]:
    """Outputs and gradients, of arguments too."""
    args = [t.clone().requires_grad_(t.is_floating_point()) for t in given]
    module.zero_grad()
    y = call(*args)
    y.float().square().sum().backward()
    return [y.detach(), *(p.grad for p in module.parameters()), *(t.grad for t in args)]


@pytest.mark.every(5)
@pytest.mark.parametrize(("name", "entry"), product(CASES, ENTRIES))
def test_a_training_step_over_nothing(name: str, entry: str) -> None:
    torch._dynamo.reset()
    make, args = CASES[name]
    module = make()
    options = {} if name == "rows" else {"backend": "interpreter"}
    right = step(module, module, args)
    if entry == "stack.compile":
        call = stack.compile(module, *args, **options)
    else:
        call = torch.compile(module, backend="stack", options=options)
    for ours, theirs in zip(step(module, call, args), right, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
