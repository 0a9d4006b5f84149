"""Indices are looked at before a call, by the host or by the device, as eager does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stack
from stack.frontends.torch.capture import calls

Tensor = torch.Tensor


def rows(table: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.embedding(index, table) * 2


def loss(scores: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(scores, index)  # with an index to ignore


@pytest.mark.parametrize("ahead", ["cuda", "cpu"])
@pytest.mark.parametrize("fn", [rows, loss], ids=lambda f: f.__name__)
def test_wrong_indices_are_refused(fn: Any, ahead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that works ahead of its answers, and on one that does not."""
    monkeypatch.setattr(calls, "_ASSERTS", "cpu" if ahead == "cuda" else "none")
    torch._dynamo.reset()
    call = torch.compile(fn, backend="stack", options={"backend": "interpreter"})
    table = torch.randn(7, 4, dtype=torch.float64)
    width = 7 if fn is rows else 4
    index = torch.randint(0, width, (7,))
    for good in (index, index.flip(0)):
        leaf = table.float().requires_grad_()
        out = call(leaf, good)
        out.sum().backward()
        wanted = table.clone().requires_grad_()
        exact = fn(wanted, good)
        exact.sum().backward()
        assert torch.allclose(out.double(), exact, rtol=1e-5, atol=1e-6)
        assert leaf.grad is not None
        assert wanted.grad is not None
        assert torch.allclose(leaf.grad.double(), wanted.grad, rtol=1e-5, atol=1e-6)
    for bad in (width, 10**9, -1):
        wrong = index.clone()
        wrong[3] = bad
        error = RuntimeError if ahead == "cuda" else IndexError  # eager's on a GPU asserts
        with pytest.raises(error, match=r"index out of range.* argument 'index'"):
            call(table.float().requires_grad_(), wrong)
    assert torch.equal(call(table.float(), index), call(table.float(), index))


def test_an_index_is_looked_at_again_when_it_was_written_to() -> None:
    table, index = torch.randn(7, 4), torch.tensor([1, 2])
    call = torch.compile(rows, backend="stack", options={"backend": "interpreter"})
    for _ in range(2):
        torch.testing.assert_close(call(table, index), rows(table, index))
    index[1] = 7
    with pytest.raises(IndexError):
        call(table, index)


def doubled(x: Tensor) -> Tensor:
    """As `interpolate` does, computes indices in floating point, from positions alone."""
    places = (torch.arange(2 * x.shape[0]) * 0.5).floor().long()
    return x[places]


def beyond(x: Tensor) -> Tensor:
    return x[(torch.arange(2 * x.shape[0]) * 0.6).floor().long()]


def by_data(x: Tensor) -> Tensor:
    return x[x.abs().clamp(max=2).long()]


def test_indices_that_depend_on_no_data_are_checked_by_the_import() -> None:
    """Results beyond the first are conditions, which each call would have to check."""
    x = torch.randn(5)
    assert len(stack.trace(doubled, x).results) == 1
    assert torch.equal(stack.compile(doubled, backend="interpreter")(x), doubled(x))
    assert len(stack.trace(by_data, x).results) == 2  # not known
    compiled = stack.compile(beyond, backend="interpreter")
    with pytest.raises(IndexError, match="index out of range"):
        compiled(x)


def test_equal_conditions_are_one() -> None:
    """Two tables of as many rows are read at the same computed indices."""

    def both(x: Tensor, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.abs().long()
        return one[rows], two[rows] * 2

    given = torch.tensor([0.0, -3.0, 6.5]), torch.randn(7, 4), torch.randn(7, 2)
    assert len(stack.trace(both, *given).results) == 3
    compiled = stack.compile(both, *given, backend="interpreter")
    for found, wanted in zip(compiled(*given), both(*given), strict=True):
        torch.testing.assert_close(found, wanted)
    with pytest.raises(IndexError, match="index out of range"):
        compiled(given[0] * 2, *given[1:])


def test_conditions_of_one_error_are_one() -> None:
    """Bags of several columns of one table: each bag reads a slice, whose rest may be anything."""

    def bags(table: Tensor, index: Tensor, more: Tensor) -> Tensor:
        found = [torch.nn.functional.embedding(index[:, i], table) for i in range(3)]
        return torch.stack([*found, torch.nn.functional.embedding(more[:4], table)])

    table, index, more = torch.randn(9, 5), torch.randint(0, 9, (4, 4)), torch.randint(0, 9, (6,))
    index[:, 3] = 100
    more[4:] = -1
    func = stack.trace(bags, table, index, more)
    assert len(func.results) == 2
    compiled = stack.compile(bags, table, index, more, backend="interpreter")
    torch.testing.assert_close(compiled(table, index, more), bags(table, index, more))
    for column in range(3):
        wrong = index.clone()
        wrong[2, column] = 9
        with pytest.raises(IndexError, match=r"index out of range.* 0 to 8"):
            compiled(table, wrong, more)
    with pytest.raises(IndexError, match="index out of range"):
        compiled(table, index, more - 20)


def test_conditions_of_other_errors_stay_apart() -> None:
    def two(one: Tensor, other: Tensor, index: Tensor) -> Tensor:
        return one[index[:, 0]] + other[index[:, 1]]

    given = torch.randn(9, 5), torch.randn(7, 5), torch.randint(0, 7, (4, 2))
    assert len(stack.trace(two, *given).results) == 3
