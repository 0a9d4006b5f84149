"""`weight_norm`: the kernel that torch's parametrization calls, and its backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stack

Tensor = torch.Tensor
CASES = [
    ((5, 3, 2), 0), ((5, 3, 2), 2), ((4,), 0), ((3, 7), 1), ((1, 6), 0),
]  # fmt: skip
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}


def normalized(v: Tensor, g: Tensor, dim: int) -> Tensor:
    return torch._weight_norm(v, g, dim)


def gradients(call: Any, v: Tensor, g: Tensor, dim: int) -> list[Tensor]:
    v, g = v.clone().requires_grad_(), g.clone().requires_grad_()
    made = call(v, g, dim)
    weights = torch.linspace(-1, 2, made.numel()).view(made.shape).to(made)
    (made * weights).sum().backward()
    assert v.grad is not None and g.grad is not None
    return [made.detach(), v.grad, g.grad]


@pytest.mark.each
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("shape", "dim"), CASES)
def test_gradients(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    v = torch.randn(shape, dtype=dtype)
    g = torch.randn([n if i == dim else 1 for i, n in enumerate(shape)], dtype=dtype)
    torch._dynamo.reset()
    compiled = torch.compile(normalized, backend="stack", fullgraph=True)
    with stack.capture() as seen:
        found = gradients(compiled, v, g, dim)
    for a, b in zip(found, gradients(normalized, v, g, dim), strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert len(seen.runs) == 2
    assert not any(run.coverage["fallback"] for run in seen.runs)


def test_a_row_of_zeros_has_no_direction() -> None:
    v, g = torch.randn(4, 3), torch.ones(4, 1)
    v[1] = 0
    torch._dynamo.reset()
    found = gradients(torch.compile(normalized, backend="stack"), v, g, 0)
    for a, b in zip(found, gradients(normalized, v, g, 0), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_a_layer_is_trained() -> None:
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 6, 3), dim=2)
    x = torch.randn(2, 4, 9)
    torch._dynamo.reset()
    grads: list[list[Tensor | None]] = []
    for call in (layer, torch.compile(layer, backend="stack")):
        layer.zero_grad()
        call(x).square().sum().backward()
        grads.append([p.grad for p in layer.parameters()])
    torch.testing.assert_close(*grads)
