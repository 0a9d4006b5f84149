"""Sums of the backward pass that the forward pass has, or takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stack.frontends import dynamo_backend
from stack.frontends.dynamo_backend import GRAPHS
from stack.frontends.fx_early import take_out_rows

Tensor = torch.Tensor


def multiples(e: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    return e.sum(-1), (d[:, None] * e).sum(-1)


def negative(e: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    return e.sum(-1), (-(e * d[:, None].expand(5, 7))).sum(-1, keepdim=True)


def number(e: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    return e.sum((0, 1)), (e * d.sum()).sum((0, 1))


def before_it(e: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    return (d[:, None] * e).sum(-1), e.sum(-1)


def along(e: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    return e.sum(0), (d[:, None] * e).sum(0)


def other_axis(e: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    return e.sum(0), (d[:, None] * e).sum(1)


def other_array(e: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    return e.sum(1), (d[:, None] * e.exp()).sum(1)


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        *((f, 1) for f in (multiples, negative, number)),
        *((f, 0) for f in (before_it, along, other_axis, other_array)),
    ],
    ids=lambda f: getattr(f, "__name__", None),
)
def test_multiples_of_a_sum(fn: Callable[..., tuple[Tensor, ...]], count: int) -> None:
    args = torch.randn(5, 7), torch.randn(5)
    made = make_fx(fn, tracing_mode="fake")(*args)
    assert take_out_rows(made.graph) == count
    made.recompile()
    exact = fn(*(a.double() for a in args))
    for got, want in zip(made(*args), exact, strict=True):
        assert got.shape == want.shape
        assert torch.allclose(got.double(), want, rtol=1e-5, atol=1e-5)


def total(x: Tensor, weight: Tensor) -> Tensor:
    """The maximum has a gradient too, shared out among ties."""
    top = x.amax(-1, keepdim=True)
    return (((x - top).exp().sum(-1).log() + top[:, 0]) * weight[:, 0]).sum()


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    """The sums of its gradient have the incoming gradients in them."""
    return (torch.softmax(x, -1) * weight).sum(-1).exp().sum()


def rows(fn: Callable[[Tensor, Tensor], Tensor], width: int, balance: float) -> tuple[int, int]:
    """Sums and maxima of rows in the forward and the backward pass; gradients are compared."""
    exact = [torch.randn(16, width).mul(2).round().double(), torch.randn(16, width).double()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo_backend, "_balance", lambda options, device: balance)
        torch._dynamo.reset()
        call = torch.compile(fn, backend="stack", options={"backend": "interpreter"})
        leaves = [x.float().requires_grad_() for x in exact]
        call(*leaves).backward()
    wanted = [x.clone().requires_grad_() for x in exact]
    fn(*wanted).backward()
    for got, want in zip(leaves, wanted, strict=True):
        assert got.grad is not None
        assert want.grad is not None
        assert torch.allclose(got.grad.double(), want.grad, rtol=1e-4, atol=1e-5)
    assert GRAPHS[-1].target.endswith("backward")
    counts = [
        sum(n.op == "reduce" and n.args[0].shape[-1] == width for n in g.func.nodes)
        for g in (GRAPHS[-2], GRAPHS[-1])
    ]
    return counts[0], counts[1]


def test_ties_are_counted_in_the_forward_pass() -> None:
    assert rows(total, 20000, 150.0) == (3, 0)
    assert rows(total, 20000, 0.0) == (2, 2)
    assert rows(total, 100, 150.0) == (2, 1)  # too few bytes to matter


def test_sums_of_incoming_gradients_stay() -> None:
    forward, backward = rows(weighted, 20000, 150.0)
    assert forward == 3
    assert backward >= 1
