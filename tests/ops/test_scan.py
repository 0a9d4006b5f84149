"""Scans: an associative function of one's own, and what is not one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stack.errors import UsageError
from stack.hosted import Op, registry
from stack.ops.scan import associative, exclusive, gated, inclusive


def log_sum(np: Any, earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
    """The maximum so far, and the sum of exponentials below it."""
    (top1, sum1), (top2, sum2) = earlier, later
    top = np.maximum(top1, top2)
    return top, sum1 * np.exp(top1 - top) + sum2 * np.exp(top2 - top)


@pytest.fixture
def running() -> Iterator[Op]:
    yield associative("toys.log_sum", log_sum, ("top", "total"))
    registry._DECLARED.pop("toys.log_sum")


def test_a_function_of_ones_own(running: Op) -> None:
    x = np.random.default_rng(0).standard_normal((2, 37))
    for call in (running, lambda *v: running.decomposition(np, *v)):
        top, total = call(x, np.ones_like(x))
        np.testing.assert_allclose(top, np.maximum.accumulate(x, -1))
        np.testing.assert_allclose(top + np.log(total), np.logaddexp.accumulate(x, -1))


def test_it_is_an_operator_of_torch(running: Op) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 9, dtype=torch.double, requires_grad=True)
    one = torch.ones_like(x)
    top, total = running(x, one)
    torch.testing.assert_close(top + total.log(), torch.logcumsumexp(x, -1))
    torch.autograd.gradcheck(lambda x: sum(running(x, one)), [x])
    assert running.doc.startswith("A scan along the last axis by log_sum")


def test_a_function_that_is_not_associative_is_refused() -> None:
    def minus(np: Any, earlier: Any, later: Any) -> Any:
        return (earlier[0] - later[0],)

    with pytest.raises(UsageError, match=r"value 0 of \(a b\) c is"):
        associative("toys.minus", minus)
    assert "toys.minus" not in registry._DECLARED


def test_sequences_of_no_steps() -> None:
    nothing = np.zeros((2, 0))
    for made in (inclusive, exclusive):
        assert made(nothing).shape == (2, 0)
        assert made.decomposition(np, nothing).shape == (2, 0)
    empty = np.zeros((0, 3))
    assert gated(empty, empty, np.ones(3)).shape == (0, 3)


def test_a_chunk_goes_on_from_the_last_state() -> None:
    rng = np.random.default_rng(1)
    gate, x = rng.uniform(-1, 1, (2, 10, 4))
    first = rng.standard_normal(4)
    head = gated(gate[:6], x[:6], first)
    tail = gated(gate[6:], x[6:], head[-1])
    np.testing.assert_allclose(np.concatenate([head, tail]), gated(gate, x, first))
