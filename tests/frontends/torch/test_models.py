"""Real models through torch.compile(backend="stack"): values, gradients, nothing falls back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_models

from stack.frontends import dynamo

pytest.importorskip("transformers")
FAST = ("llama", "gpt2", "bert", "resnet")


def params(*, fast: tuple[str, ...]) -> list[Any]:
    return [
        name if name in fast else pytest.param(name, marks=pytest.mark.slow)
        for name in torch_models.MODELS
    ]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    dynamo.clear_runs()


def compiled(module: Any) -> Any:
    return torch.compile(module, backend="stack", options={"backend": "interpreter"})


def check_coverage() -> None:
    coverages = [run.coverage for run in dynamo.runs()]
    assert coverages
    assert all(not c["fallback_ops"] for c in coverages), coverages


@pytest.mark.parametrize("name", params(fast=FAST))
def test_forward(name: str) -> None:
    module, given = torch_models.make(name)
    with torch.no_grad():
        mine = torch_models.main_output(compiled(module)(**given))
        eager = torch_models.main_output(module(**given))
    torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    assert len(dynamo.runs()) == 1
    check_coverage()


@pytest.mark.parametrize("name", params(fast=("gpt2",)))
def test_backward(name: str) -> None:
    module, given = torch_models.make(name)
    mine = torch_models.gradients(module, compiled(module), given)
    eager = torch_models.gradients(module, module, given)
    assert mine.keys() == eager.keys()
    # a bias before a softmax has gradient 0: what is left there is rounding
    largest = max(float(g.abs().max()) for g in eager.values())
    for key, gradient in eager.items():
        torch.testing.assert_close(mine[key], gradient, rtol=1e-3, atol=1e-6 * largest)
    check_coverage()
