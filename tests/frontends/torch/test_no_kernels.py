"""Programs of which nothing is compiled have a record all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stack
from stack.errors import StackError

X = torch.randn(3, 4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_arguments_alone(dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> Any:
        return x.t(), x[1:]

    compiled = stack.compile(fn, X, dynamic=dynamic)
    assert compiled.run.stages == ["captured", "imported"]
    assert compiled.run.coverage["ops"] == 0
    assert "2 stages, 0 kernels" in repr(compiled)
    assert compiled(X)[0].data_ptr() == X.data_ptr()
    with pytest.raises(StackError, match="nothing to measure"):
        compiled.graph  # noqa: B018 a property that raises


def test_the_interpreter() -> None:
    compiled = stack.compile(torch.exp, X, backend="interpreter")
    torch.testing.assert_close(compiled(X), X.exp())
    assert compiled.run.backend == "interpreter"
    assert compiled.run["imported"].func is compiled.func
    assert "to interpreter" in repr(compiled)
    assert compiled(X[:2]).shape == (2, 4)
    assert "captured again" in compiled.run.notes
