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
