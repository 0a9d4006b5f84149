"""Calls of one compiled program whose arrays move, are not dense, are freed or are written."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import stack

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
DEVICE = "cuda"
ROWS, WIDTH = 96, 64


LAYOUTS: tuple[Callable[[], Any], ...] = (
    lambda: torch.randn(ROWS, WIDTH, device=DEVICE),
    lambda: torch.randn(ROWS * WIDTH + 1, device=DEVICE)[1:].view(ROWS, WIDTH),  # not aligned
    lambda: torch.randn(WIDTH, ROWS, device=DEVICE).T,
    lambda: torch.randn(ROWS, 2 * WIDTH, device=DEVICE)[:, ::2],
    lambda: torch.randn(1, WIDTH, device=DEVICE).expand(ROWS, WIDTH),
)
DENSE = 2


@pytest.fixture
def module() -> Any:
    torch._dynamo.reset()
    layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH))
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 32)).to(DEVICE)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_training_steps(module: Any, backend: str, graph: bool) -> None:
    compiled = torch.compile(module, backend="stack", options={"backend": backend, "graph": graph})
    weights = list(module.parameters())
    kept = []
    for turn in range(12):
        x = LAYOUTS[turn % DENSE]().detach().requires_grad_()
        seed = torch.randn(32, ROWS, device=DEVICE).T
        found = torch.autograd.grad(compiled(x), [x, *weights], seed)
        wanted = torch.autograd.grad(module(x), [x, *weights], seed)
        kept.append((found if turn % 3 else [f.clone() for f in found], wanted))
        del x, seed, found
        gc.collect()
        torch.cuda.empty_cache()
        with torch.no_grad():  # an optimizer's step: the same memory, other values
            for w in weights:
                w.add_(torch.randn_like(w) * 0.01)
    for found, wanted in kept:
        for have, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_inputs_of_any_layout(module: Any, backend: str, graph: bool) -> None:
    with torch.no_grad():
        compiled = stack.compile(module, LAYOUTS[0](), backend=backend, graph=graph)
        kept = []
        for turn in range(15):
            x = LAYOUTS[turn % len(LAYOUTS)]()
            kept.append((compiled(x), module(x)))
            x.fill_(float("nan"))
    assert len(compiled.graphs) <= len(LAYOUTS)  # one for each order of axes
    for have, want in kept:
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("graph", [False, True])
def test_weights_that_move(module: Any, graph: bool) -> None:
    options = {"backend": "triton", "graph": graph}
    compiled = torch.compile(module, backend="stack", options=options)
    x = torch.randn(ROWS, WIDTH, device=DEVICE)
    for _ in range(6):
        with torch.no_grad():
            for _ in range(4):
                torch.testing.assert_close(compiled(x), module(x), rtol=1e-3, atol=1e-3)
            for w in module.parameters():
                old = w.data
                w.data = torch.randn_like(old) * 0.1
                old.fill_(float("nan"))  # whoever still reads there shows it
