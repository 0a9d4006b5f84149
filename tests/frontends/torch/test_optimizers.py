"""Steps of optimizers: parameters that a graph holds, ops on lists, fused multiply-adds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stack.frontends.torch.compile.dynamo_backend import GRAPHS
from stack.frontends.torch.program.fast_path import has_parts

ops: Any = torch  # its stubs leave out ops on lists
Lists = tuple[list[torch.Tensor], list[torch.Tensor]]
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=0.1, amsgrad=True, **k),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=0.1, **k),
}


def trained(
    model: nn.Module, x: torch.Tensor, name: str, foreach: bool, compiled: bool
) -> list[torch.Tensor]:
    optimizer = OPTIMIZERS[name](model.parameters(), foreach=foreach)
    step: Any = optimizer.step
    step = torch.compile(step, backend="stack") if compiled else step
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.each
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_native(name: str, foreach: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(5, 4)
    exact = trained(copy.deepcopy(model).double(), x.double(), name, foreach, compiled=False)
    GRAPHS.clear()
    found = trained(model, x, name, foreach, compiled=True)
    for got, want in zip(found, exact, strict=True):  # torch compiles 0.999 ** step in f32
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
    assert GRAPHS
    assert not any(n.op == "opaque" for graph in GRAPHS for n in graph.func.nodes)


class Scaled(torch.optim.Optimizer):
    """As Prodigy: a number that depends on the gradients scales the step."""

    def __init__(self, params: Any, by: float) -> None:
        super().__init__(params, {"by": by})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        total: Any = 0.0
        for group in self.param_groups:
            for p in group["params"]:
                if "m" not in self.state[p]:
                    self.state[p]["m"] = torch.zeros_like(p)
                self.state[p]["m"].lerp_(p.grad, 0.1)
                total = total + self.state[p]["m"].abs().sum()
        if total == 0:
            return
        scale = (total / 7).item()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                size = self.state[p]["m"].abs().sqrt()
                size.add_(scale * group["by"])
                p.addcdiv_(self.state[p]["m"], size, value=-0.01)


def test_parameters_that_a_part_of_a_step_holds() -> None:
    torch.manual_seed(0)
    start, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(5, 4)

    def after(by: float, compiled: bool) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model = copy.deepcopy(start)
        optimizer = Scaled(model.parameters(), by)
        step = torch.compile(optimizer.step, backend="stack") if compiled else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            step()
        return [p.detach() for p in model.parameters()]

    found = after(0.5, compiled=True)
    torch.testing.assert_close(found, after(0.5, compiled=False))
    other = after(0.25, compiled=False)
    assert all(not torch.allclose(a, b, rtol=1e-4) for a, b in zip(found, other, strict=True))


def averaged(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> None:
    ops._foreach_mul_(xs, 0.9)
    ops._foreach_add_(xs, ys, alpha=0.1)
    ops._foreach_lerp_(ys, xs, 0.25)
    ops._foreach_copy_(xs[:1], ys[:1])
    ops._foreach_zero_(xs[1:])


def listed(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> Any:
    return (
        ops._foreach_addcdiv(xs, ys, ys, [0.1, -0.2]),
        ops._foreach_addcmul(xs, ys, ys, value=2.0),
        ops._foreach_pow(2.0, xs),
        ops._foreach_sub(xs, [1.0, 2.0]),
        ops._foreach_mul(xs, torch.tensor(2.0)),
        ops._foreach_norm(xs, 1),
        ops._foreach_max(xs),
        ops._foreach_clamp_min(xs, 0.0),
        ops._foreach_maximum(xs, ys),
    )


@pytest.mark.parametrize("fn", [averaged, listed])
def test_ops_on_lists(fn: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    given: Lists = ([torch.randn(3), torch.randn(2, 4).t()], [torch.randn(3), torch.randn(4, 2)])
    twins = copy.deepcopy(given)
    found = torch.compile(fn, backend="stack")(*given)
    torch.testing.assert_close(found, fn(*twins))
    torch.testing.assert_close(given, twins)
    assert not any(n.op == "opaque" for n in GRAPHS[-1].func.nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_multiply_add(dtype: torch.dtype) -> None:
    x, y = torch.linspace(-3, 3, 33, dtype=dtype), torch.linspace(1, 2, 33, dtype=dtype)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.clone().addcdiv_(x, y, value=-0.1).addcmul_(x, y, value=3.0)

    torch._dynamo.reset()
    found = torch.compile(fn, backend="stack")(x, y)
    exact = fn(x.double(), y.double())
    far, bound = (found - exact).abs().max(), (fn(x, y) - exact).abs().max()
    assert float(far) <= 3 * float(bound)
    assert not any(n.op == "opaque" for n in GRAPHS[-1].func.nodes)


def test_what_a_graph_holds_counts_whatever_its_values() -> None:
    held = torch.fx.GraphModule({}, torch.fx.Graph())
    assert not has_parts(held)
    held.register_buffer("zero", torch.zeros(()))
    assert has_parts(held)
    held.register_buffer("row", torch.ones(3))
    assert has_parts(held)
