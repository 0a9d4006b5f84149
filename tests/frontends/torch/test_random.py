"""Random ops: with one seed, a compiled program draws what eager draws, call after call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import stack

X = torch.rand(6, 20, generator=torch.Generator().manual_seed(1))


def _difference(x: Tensor) -> Tensor:
    return torch.rand(6, 20, device=x.device) - torch.rand(6, 20, device=x.device)


DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_of_all": lambda x: F.dropout(x, 1.0) + torch.rand(6, 20, device=x.device),
    "dropout_of_none": lambda x: F.dropout(x, 0.0) + torch.rand(6, 20, device=x.device),
    "dropout_twice": lambda x: F.dropout(F.dropout(x, 0.3) + 1, 0.5),
    "dropout_in_place": lambda x: F.dropout(x + 1, 0.3, inplace=True),
    "dropout1d": lambda x: F.dropout1d(x.reshape(2, 3, 20), 0.5),
    "dropout2d": lambda x: F.dropout2d(x.reshape(1, 6, 4, 5), 0.5),
    "dropout3d": lambda x: F.dropout3d(x.reshape(1, 6, 4, 5, 1), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.3, training=True),
    "rrelu": lambda x: F.rrelu(-x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.4),
    "rand": lambda x: x * torch.rand(6, 20, device=x.device),
    "rand_like": torch.rand_like,
    "randn": lambda x: x * torch.randn(6, 20, device=x.device),
    "randn_like": torch.randn_like,
    "randint": lambda x: x * torch.randint(3, 9, (20,), device=x.device),
    "randint_like": lambda x: torch.randint_like(x, 9),
    "randperm": lambda x: x[:, torch.randperm(20, device=x.device)],
    "normal": lambda x: torch.normal(x, x + 1),
    "normal_of_numbers": lambda x: x + torch.normal(1.0, 2.0, (6, 20), device=x.device),
    "bernoulli": torch.bernoulli,
    "multinomial": lambda x: torch.multinomial(x, 5),
    "poisson": torch.poisson,
    "bernoulli_": lambda x: x.clone().bernoulli_(0.4),
    "normal_": lambda x: x.clone().normal_(1, 2),
    "uniform_": lambda x: x.clone().uniform_(-1, 2),
    "exponential_": lambda x: x.clone().exponential_(),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "geometric_": lambda x: x.clone().geometric_(0.3),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "order": lambda x: (torch.rand(9, device=x.device), torch.randn(9, device=x.device))[::-1],
    "order_inside": lambda x: -_difference(x).flip(0) * x,
    "columns": lambda x: F.dropout(x.t(), 0.5),
    "columns_of_columns": lambda x: torch.bernoulli(x.t()) + torch.rand_like(x.t()),
    "strided_normal": lambda x: x[:, ::2].clone().t().normal_(),
    "repeated": lambda x: torch.bernoulli(x[:1].expand(6, 20)),
    "channels_last": lambda x: F.dropout(
        x.reshape(1, 6, 4, 5).to(memory_format=torch.channels_last), 0.5
    ),
    "f64": lambda x: F.dropout(x.double(), 0.3) + torch.rand_like(x[0].double()),
    "bf16": lambda x: (F.dropout(x.bfloat16(), 0.3), torch.randn_like(x.bfloat16())),
}  # fmt: skip


FEW = (
    "dropout",
    "rand",
    "normal",
    "multinomial",
    "exponential_",
    "order_inside",
    "columns",
    "bf16",
)
CASES = [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in DRAWS]


def assert_draws_as_eager(
    eager: Callable[..., Any], compiled: Callable[..., Any], *args: Any
) -> None:
    """Two calls in a row, and the state of the generator after them."""
    compiled(*args)
    place = args[0].device
    torch.manual_seed(3)
    want = [eager(*args), eager(*args), torch.rand((), device=place)]
    torch.manual_seed(3)
    found = [compiled(*args), compiled(*args), torch.rand((), device=place)]
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
    assert not torch.equal(*map(_first, found[:2]))


def _first(value: Any) -> Tensor:
    return value[0] if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", CASES)
def test_compile_draws_as_eager(name: str) -> None:
    assert_draws_as_eager(DRAWS[name], stack.compile(DRAWS[name], X), X)


@pytest.mark.parametrize("name", CASES)
def test_torch_compile_draws_as_eager(name: str) -> None:
    torch._dynamo.reset()
    assert_draws_as_eager(DRAWS[name], torch.compile(DRAWS[name], backend="stack"), X)


def test_dynamic_sizes() -> None:
    def f(x: Tensor) -> Tensor:
        return F.dropout(x.t(), 0.5) + torch.randn(x.shape[1], x.shape[0])

    ours = stack.compile(f, X, dynamic=True)
    for compiled in (ours, torch.compile(f, backend="stack", dynamic=True)):
        for rows in (6, 9, 2):
            assert_draws_as_eager(f, compiled, torch.rand(rows, 20))


class Net(torch.nn.Module):
    """Two layers with dropout, recomputed in the backward pass where asked."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.first, self.second = torch.nn.Linear(20, 30), torch.nn.Linear(30, 20)
        self.drop = torch.nn.Dropout(0.4)

    def block(self, x: Tensor) -> Tensor:
        return self.second(self.drop(torch.relu(self.first(x))))

    def forward(self, x: Tensor) -> Tensor:
        inner = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return (F.dropout(x + inner, 0.5) * torch.rand_like(x)).sum()


@pytest.mark.parametrize("again", [False, True])
def test_the_backward_pass_has_the_same_mask(again: bool) -> None:
    torch._dynamo.reset()
    net = Net(again)
    compiled = torch.compile(net, backend="stack")

    def gradients(run: Callable[..., Any]) -> list[Tensor]:
        net.zero_grad()
        x = X.clone().requires_grad_()
        run(x).backward()
        assert x.grad is not None
        return [x.grad, *(p.grad.clone() for p in net.parameters() if p.grad is not None)]

    gradients(compiled)
    torch.manual_seed(5)
    want = [*gradients(net), *gradients(net)]
    torch.manual_seed(5)
    found = [*gradients(compiled), *gradients(compiled)]
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


def test_evaluation_draws_nothing() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(20, 4), torch.nn.Dropout(0.4)).eval()
    run = stack.compile(net, X).run
    assert run.coverage["fallback"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", DRAWS)
def test_a_gpu_draws_as_eager(name: str) -> None:
    torch._dynamo.reset()
    x, draw = X.cuda(), DRAWS[name]
    assert_draws_as_eager(draw, stack.compile(draw, x), x)
    assert_draws_as_eager(draw, torch.compile(draw, backend="stack"), x)
