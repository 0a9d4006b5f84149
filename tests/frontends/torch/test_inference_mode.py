"""Inference mode on a module's forward, within it and around the call, and its neighbours."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest

import stack

torch = pytest.importorskip("torch")
X = torch.linspace(-1, 1, 64).reshape(8, 8)


class Base(torch.nn.Module):
    """With a table that is no buffer, as in Llama's code of Meta's."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(128.0).reshape(16, 8)
        self.w = torch.nn.Linear(8, 8)


class Decorated(Base):
    @torch.inference_mode()
    def forward(self, x: Any) -> Any:
        self.table = self.table.to(x.device)
        return self.w(x) * self.table[4:12]


class WithoutGradients(Base):
    @torch.no_grad()
    def forward(self, x: Any) -> Any:
        self.table = self.table * 1.5
        return self.w(x) * self.table[4:12]


class Within(Base):
    def forward(self, x: Any) -> Any:
        with torch.inference_mode():
            y = self.w(x) * self.table[4:12]
            y[0] = 0
        return y


class GradientsInside(Base):
    @torch.inference_mode()
    def forward(self, x: Any) -> Any:
        with torch.enable_grad():
            return self.w(x).sum()


class GradientsAnew(Base):
    @torch.no_grad()
    def forward(self, x: Any) -> Any:
        with torch.enable_grad():
            return (self.w(x) ** 2).sum()


class Left(Base):
    @torch.inference_mode()
    def forward(self, x: Any) -> Any:
        with torch.inference_mode(False):
            return self.w(x).sum()


class Beside(Base):
    def forward(self, x: Any) -> Any:
        with torch.inference_mode():
            y = self.w(x)[1:3]
        return self.w(x).sum() + y.sum()


MODULES = [Decorated, WithoutGradients, Within, GradientsInside, GradientsAnew, Left, Beside]
AROUND = {"none": nullcontext, "inference": torch.inference_mode, "no_grad": torch.no_grad}


def flags(x: Any) -> tuple[bool, bool]:
    return x.requires_grad, x.is_inference()


@pytest.mark.each
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("module", MODULES)
def test_values_and_flags_are_those_of_eager(module: Any, around: str) -> None:
    own = module()
    eager = copy.deepcopy(own)
    with AROUND[around]():
        compiled = stack.compile(own, X)
        for _ in range(2):
            found, wanted = compiled(X), eager(X)
            torch.testing.assert_close(found, wanted)
            assert flags(found) == flags(wanted)
        torch.testing.assert_close(own.table, eager.table)


@pytest.mark.every(2)
@pytest.mark.parametrize("module", [Decorated, Within, GradientsAnew])
def test_one_object_serves_all_modes(module: Any) -> None:
    eager = module()
    compiled = stack.compile(eager, X)
    for mode in (torch.inference_mode, nullcontext, torch.no_grad, torch.inference_mode):
        with mode():
            found, wanted = compiled(X), eager(X)
        torch.testing.assert_close(found, wanted)
        assert flags(found) == flags(wanted)


@pytest.mark.parametrize("module", [Decorated, Left])
def test_through_torch(module: Any) -> None:
    torch._dynamo.reset()
    eager = module()
    found = torch.compile(eager, backend="stack")(X)
    torch.testing.assert_close(found, eager(X))
    assert flags(found) == flags(eager(X))


def test_a_trace() -> None:
    module = Decorated()
    with torch.inference_mode():
        wanted = module(X).numpy()
    func = stack.trace(module, X)
    weights = {"w.weight": module.w.weight, "w.bias": module.w.bias, "x": X}
    names = [str(p.attrs["name"]) for p in func.params]
    given = [weights.get(name, module.table).detach().numpy() for name in names]
    result = func.interpret(*given)
    first = result[0] if isinstance(result, tuple) else result
    torch.testing.assert_close(torch.from_numpy(first), torch.from_numpy(wanted))


def test_gradients_beside_inference_mode() -> None:
    module = Beside()
    eager = copy.deepcopy(module)
    compiled = stack.compile(module, X)
    compiled(X).backward()
    eager(X).backward()
    torch.testing.assert_close(module.w.weight.grad, eager.w.weight.grad)


def slope(x: Any) -> Any:
    return torch.func.grad(lambda v: (torch.tanh(v) * v).sum())(x)


def slope_within(x: Any) -> Any:
    with torch.inference_mode():
        y = slope(x)
    return y + 1


def curvature(x: Any) -> Any:
    return torch.func.hessian(lambda v: (torch.sigmoid(v) ** 3).sum() * v.prod())(x)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("program", [slope, slope_within, curvature])
def test_derivatives_by_torch_func_are_computed_in_each_mode(program: Any, mode: Any) -> None:
    """They enable gradients of their own values; those were disabled, and the result was zero."""
    torch.compiler.reset()
    x = torch.linspace(0.5, 2, 5)
    with mode():
        want, got = program(x), torch.compile(program, backend="stack")(x)
    torch.testing.assert_close(got, want)
    assert got.abs().max() > 0 and not got.requires_grad


def test_only_switches_around_a_derivative_are_those_of_the_program() -> None:
    from stack.frontends.torch.graphs.inference_mode import gradient_switches

    found: list[list[bool]] = []

    def program(x: Any) -> Any:
        with torch.enable_grad():
            y = x * 2
        return slope(y)

    def backend(gm: Any, _: Any) -> Any:
        found.append([bool(n.args[0]) for n in gradient_switches(gm.graph)])
        return gm

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(program, backend=backend)(X)
    assert found == [[True, False]]
