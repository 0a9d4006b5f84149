"""Forward-mode derivatives reach through compiled programs, or are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad

import stack
from stack.errors import StackError

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def curve(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x


@pytest.mark.each
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("called", [False, True])
def test_a_tangent_is_not_lost(whole: bool, called: bool) -> None:
    torch._dynamo.reset()
    call: Callable[..., torch.Tensor] = (
        stack.compile(curve, X) if whole else torch.compile(curve, backend="stack")
    )
    if called:  # an entry that was made without tangents does not serve
        torch.testing.assert_close(call(X), curve(X))
    with forward_ad.dual_level(), pytest.warns(UserWarning, match="op by op in torch"):
        found = forward_ad.unpack_dual(call(forward_ad.make_dual(X, torch.ones(2, 3))))
    assert found.tangent is not None
    torch.testing.assert_close(found.tangent, X.cos() * X + X.sin())
    torch.testing.assert_close(call(X), curve(X))


def test_nothing_is_compiled_where_tensors_have_tangents() -> None:
    with forward_ad.dual_level(), pytest.raises(StackError, match="compile before it"):
        stack.compile(curve, forward_ad.make_dual(X, torch.ones(2, 3)))


def test_zeros_of_a_second_derivative_are_compiled() -> None:
    """Forward mode writes them as zeros without memory, which backward keeps."""
    torch._dynamo.reset()
    layer = torch.nn.Linear(3, 4)

    def curvature(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.hessian(lambda v: layer(v).tanh().sum()))(x)

    with stack.capture() as seen:
        found = torch.compile(curvature, backend="stack")(X)
        (gradient,) = torch.autograd.grad(found.square().sum(), layer.weight)
    expected = curvature(X)
    torch.testing.assert_close(found, expected)
    (wanted,) = torch.autograd.grad(expected.square().sum(), layer.weight)
    torch.testing.assert_close(gradient, wanted)
    assert all(run.coverage["fallback"] == 0 for run in seen.runs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_without_memory_are_arguments(dtype: torch.dtype) -> None:
    call = torch.compile(curve, backend="stack")
    zeros = torch.ops.aten._efficientzerotensor(X.shape, dtype=dtype)
    for x in (X.to(dtype), X.to(dtype), zeros):
        torch.testing.assert_close(call(x), curve(x))
