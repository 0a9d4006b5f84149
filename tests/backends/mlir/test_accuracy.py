"""Sums of a million f32: errors against fp64, at most twice eager's, or one rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as nn

import stack

Tensor = torch.Tensor
Program = Callable[..., Tensor]

N = 1_000_000
HALF_UNIT = 2.0**-24  # what rounding an exact result to f32 costs at most
PRIME = 999_983


def uniform(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def normal(*shape: int, mean: float = 0.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) + mean


PROGRAMS: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "sum": (lambda x: x.sum(), (uniform(N),)),
    "sum far from 0": (lambda x: x.sum(), (uniform(N) + 1000,)),
    "rows": (lambda x: x.sum(-1), (uniform(8, N // 8),)),
    "columns": (lambda x: x.sum(0), (uniform(PRIME, 3),)),
    "equal numbers": (lambda x: x.sum(0), (torch.full((N, 2), 0.1),)),
    "middle": (lambda x: x.sum((0, 2)), (uniform(1000, 5, 200),)),
    "mean": (lambda x: x.mean(), (uniform(N) + 10,)),
    "norm": (lambda x: x.norm(), (normal(N),)),
    "variance": (lambda x: x.var(), (normal(N),)),
    "variance far from 0": (lambda x: x.var(), (normal(N, mean=1000),)),
    "deviation of columns": (lambda x: x.std(0), (normal(N // 4, 4, mean=3),)),
    "loss": (nn.mse_loss, (normal(N), uniform(N))),
    "dot": (torch.dot, (uniform(N), uniform(N))),
    "product": (torch.mm, (uniform(32, N // 10), uniform(N // 10, 32))),
    "product in place": (torch.mm, (uniform(64, N // 10), uniform(N // 10, 64))),
    "column times row": (lambda x, y: x.T @ y, (uniform(N // 10, 32), uniform(N // 10, 48))),
    "line times rows": (nn.linear, (uniform(1, N), uniform(3, N))),
    "running sum": (lambda x: x.cumsum(0), (uniform(N),)),
    "running sums of rows": (lambda x: x.cumsum(1), (uniform(4, N // 4),)),
    "running sums of columns": (lambda x: x.cumsum(0), (uniform(N // 4, 4),)),
    "running product": (lambda x: x.cumprod(0), (1 + 1e-4 * (uniform(N) - 0.5),)),
    "softmax": (lambda x: x.softmax(0), (normal(N),)),
    "layer norm": (lambda x: nn.layer_norm(x, (N,)), (normal(1, N, mean=5),)),
    "group norm": (lambda x: nn.group_norm(x, 1), (normal(1, 4, 500, 500, mean=5),)),
}


def error(found: Tensor, exact: Tensor) -> float:
    """The largest, of running values for each of them, relative to the largest result."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.every(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_more_than_twice_eager(name: str) -> None:
    program, args = PROGRAMS[name]
    compiled = stack.compile(program, *args)
    assert compiled.run.coverage["library"] == compiled.run.coverage["fallback"] == 0
    exact = program(*(a.double() for a in args))
    allowed = 2 * max(error(program(*args), exact), HALF_UNIT)
    assert error(compiled(*args), exact) <= allowed


@pytest.mark.parametrize("name", ["columns", "variance", "running sum"])
def test_through_torch(name: str) -> None:
    program, args = PROGRAMS[name]
    exact = program(*(a.double() for a in args))
    found = torch.compile(program, backend="stack", fullgraph=True)(*args)
    assert error(found, exact) <= 2 * max(error(program(*args), exact), HALF_UNIT)


def test_gradient_of_a_long_sum() -> None:
    """A bias's gradient is a sum of columns."""
    x, w = normal(N // 10, 4), normal(4, 4)

    def program(bias: Tensor) -> Tensor:
        return ((x @ w + bias).sigmoid() ** 2).sum()

    def gradient(call: Program, dtype: torch.dtype) -> Tensor:
        bias = torch.zeros(4, dtype=dtype, requires_grad=True)
        call(bias).backward()
        assert bias.grad is not None
        return bias.grad

    def exactly(bias: Tensor) -> Tensor:
        return ((x.double() @ w.double() + bias).sigmoid() ** 2).sum()

    exact = gradient(exactly, torch.float64)
    eager = error(gradient(program, torch.float32), exact)
    found = gradient(torch.compile(program, backend="stack", fullgraph=True), torch.float32)
    assert error(found, exact) <= 2 * max(eager, HALF_UNIT)
