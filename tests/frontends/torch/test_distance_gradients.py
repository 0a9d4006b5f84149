"""Gradients of `cdist` are compiled: sums over pairs, 0 where two rows are equal."""

from __future__ import annotations

import math
from typing import Any

import pytest

import stack

torch = pytest.importorskip("torch")


def gradients(call: Any, x: Any, y: Any, p: float) -> list[Any]:
    own = [v.clone().requires_grad_() for v in (x, y)]
    made = call(*own, p)
    weights = torch.linspace(-1, 2, made.numel()).reshape(made.shape)
    (made * weights.to(made)).sum().backward()
    return [v.grad for v in own]


ROWS = (6, 3), (5, 3)
CASES = [(p, ROWS) for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)]
CASES += [(2.0, ((2, 1, 4, 3), (3, 5, 3))), (2.0, ((1, 2), (1, 2)))]


@pytest.mark.parametrize(("p", "shapes"), CASES)
def test_values_are_those_of_eager(p: float, shapes: Any) -> None:
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(shape, generator=generator) for shape in shapes)
    x[..., 0, :] = y.reshape(-1, y.shape[-1])[0]  # a distance of 0
    x[..., -1, 1] = y.reshape(-1, y.shape[-1])[0, 1]  # a gap of 0 along one axis
    with stack.capture() as seen:
        found = gradients(torch.compile(torch.cdist, backend="stack"), x, y, p)
    assert all(run.coverage["fallback_ops"] == {} for run in seen.runs)
    want = gradients(torch.cdist, x.double(), y.double(), p)
    eager = gradients(torch.cdist, x, y, p)
    for ours, exact, theirs in zip(found, want, eager, strict=True):
        error = (theirs - exact).abs().max()
        assert (ours - exact).abs().max() <= 2 * error + 1e-6 * exact.abs().max()


def test_a_distance_of_its_own_rows_has_a_gradient_without_nan() -> None:
    torch.compiler.reset()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.compile(lambda v: torch.cdist(v, v).sum(), backend="stack")(x).backward()
    assert x.grad is not None and x.grad.isfinite().all() and x.grad.abs().max() > 0
