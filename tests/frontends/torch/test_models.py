"""Real models through torch.compile(backend="stack"): values, gradients, nothing falls back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_models

from stack.frontends import torch as frontend

pytest.importorskip("transformers")
EPS = 2.0**-24
FAST = ("llama", "resnet")


def params(*, fast: tuple[str, ...]) -> list[Any]:
    return [
        name if name in fast else pytest.param(name, marks=pytest.mark.slow)
        for name in torch_models.MODELS
    ]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    frontend.clear_runs()


def compiled(module: Any, backend: str = "interpreter") -> Any:
    return torch.compile(module, backend="stack", options={"backend": backend})


def check_coverage() -> None:
    coverages = [run.coverage for run in frontend.runs()]
    assert coverages
    assert all(not c["fallback_ops"] for c in coverages), coverages


@pytest.mark.parametrize("name", params(fast=FAST))
def test_forward(name: str) -> None:
    module, given = torch_models.make(name)
    with torch.no_grad():
        mine = torch_models.main_output(compiled(module)(**given))
        eager = torch_models.main_output(module(**given))
    torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    assert len(frontend.runs()) == 1
    check_coverage()


def error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], *keys: str) -> float:
    """Length of the difference of gradients."""
    parts = [(found[k] - exact[k]).norm() for k in keys or exact]
    return float(torch.stack(parts).norm())


@pytest.mark.parametrize("backend", ["mlir", pytest.param("interpreter", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", params(fast=("gpt2",)))
def test_backward(name: str, backend: str) -> None:
    module, given = torch_models.make(name)
    mine = torch_models.gradients(module, compiled(module, backend), given)
    eager = torch_models.gradients(module, module, given)
    exact = torch_models.exact_gradients(module, given)
    assert eager.keys() == exact.keys() <= mine.keys()
    # AOTAutograd gives zeros where eager gives None: to what an output leads that nobody uses
    assert not any(bool(mine[k].any()) for k in mine.keys() - exact.keys())
    assert error(mine, exact) <= 2 * error(eager, exact)
    for key, gradient in exact.items():
        # eager happens to be near the truth in some: a few roundings more are no fault
        allowed = 2 * error(eager, exact, key) + 32 * EPS * float(gradient.norm())
        assert error(mine, exact, key) <= allowed, key
    check_coverage()
