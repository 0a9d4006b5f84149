"""Results on another device than the program: torch moves them, and what is before is compiled."""

from __future__ import annotations

from typing import Any

import pytest

import stack
from stack.errors import UnsupportedOp

torch = pytest.importorskip("torch")


def moved(x: Any) -> Any:
    y = x + 1
    z = (y * 2).to("meta")
    return y.exp(), z, z + 1


def inside(x: Any) -> Any:
    """No result is elsewhere; a table on another device has values of its own."""
    table = torch.arange(4, device="meta")
    return x[: table.shape[0]] * 2


def test_a_result_that_the_program_moves_elsewhere() -> None:
    x = torch.randn(5, requires_grad=True)
    compiled = stack.compile(moved, x)
    y, z, after = compiled(x)
    torch.testing.assert_close(y, (x + 1).exp())
    assert z.device == after.device == torch.device("meta") and z.shape == (5,)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (x + 1).exp())
    notes = compiled.run.notes["fallbacks"]
    assert notes.count("on another device than the program") == 2
    assert ".to() at test_other_devices.py:" in notes and "exp" not in notes
    assert compiled.run.coverage["fallback_ops"] == {"torch:.to()": 1, "torch:add": 1}


def test_strict_names_it() -> None:
    with pytest.raises(UnsupportedOp, match="on another device"):
        stack.compile(moved, torch.randn(5), strict=True)


def test_values_elsewhere_that_stay_inside_split_nothing() -> None:
    x = torch.randn(5)
    compiled = stack.compile(inside, x)
    torch.testing.assert_close(compiled(x), x[:4] * 2)
    assert "fallbacks" not in compiled.run.notes
