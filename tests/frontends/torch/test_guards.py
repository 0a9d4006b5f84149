"""Indices that a condition bounds need no look at their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stack
from stack.frontends.torch.aten.bounds import bounds_where, value_bounds
from stack.ir.builder import Builder, param
from stack.ir.node import Node
from stack.ir.types import TensorType, tensor

torch = pytest.importorskip("torch")

Condition = Callable[[Builder, Node], Node]
BOUNDED: dict[str, tuple[Condition, tuple[int, int] | None]] = {
    "both sides": (lambda b, x: b.and_(b.ge(x, 0.0), b.lt(x, 56.0)), (0, 55)),
    "a cast cuts": (lambda b, x: b.and_(b.gt(x, -0.5), b.lt(x, 2.5)), (0, 2)),
    "below zero": (lambda b, x: b.and_(b.ge(x, -3.0), b.lt(x, 0.0)), (-3, 0)),
    "mirrored": (lambda b, x: b.and_(b.le(1.0, x), b.gt(9.0, x)), (1, 8)),
    "the narrower": (
        lambda b, x: b.and_(b.and_(b.ge(x, 0.0), b.ge(x, 2.0)), b.and_(b.le(x, 7.0), b.le(x, 9.0))),
        (2, 7),
    ),
    "one side": (lambda b, x: b.ge(x, 0.0), None),
    "either": (lambda b, x: b.or_(b.ge(x, 0.0), b.lt(x, 56.0)), None),
    "another value": (lambda b, x: b.and_(b.ge(b.neg(x), 0.0), b.lt(x, 56.0)), None),
    "no number": (lambda b, x: b.and_(b.ge(x, float("-inf")), b.lt(x, 56.0)), None),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds(name: str) -> None:
    condition, expected = BOUNDED[name]
    b, x = Builder(), param("x", tensor("f32", 4))
    whole = b.cast(x, type=TensorType(tensor("i64").dtype, (4,)))
    assert bounds_where(condition(b, x), whole) == expected
    chosen = b.select(condition(b, x), whole, 0)
    union = expected and (min(expected[0], 0), max(expected[1], 0))
    assert value_bounds(chosen) == union


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_samples_of_a_grid_are_not_looked_at(mode: str) -> None:
    """Places outside of the image and nan are the border's, or zero: no index is out of range."""

    def sample(x: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(x, grid, mode=mode, align_corners=False)

    x, grid = torch.randn(2, 3, 5, 7), torch.randn(2, 4, 6, 2) * 2
    func = stack.trace(sample, x, grid)
    assert len(func.results) == 1
    got = stack.compile(sample, x, grid, backend="mlir")(x, grid)
    torch.testing.assert_close(got, sample(x, grid), rtol=1e-5, atol=1e-5)
