"""Indices that are told of after a graph was queued: in range in it, refused all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stack.frontends import dynamo_backend
from stack.frontends.aten import IndexCheck
from stack.frontends.dynamo_backend import GRAPHS
from stack.frontends.torch_index import ask, into_range, may_wait
from stack.ir import Builder, param, tensor
from stack.ir.dim import symbol

Tensor = torch.Tensor


def test_indices_come_into_range() -> None:
    b = Builder()
    x, i = param("x", tensor("f32", 5)), param("i", tensor("i64", 3))
    func = b.func("main", [x, i], [b.mul(x, 2.0), b.add(i, i)])
    check = IndexCheck(i, -5, 4, (), "gather")
    made = into_range(func, [check])
    assert made.params == func.params
    data = torch.arange(5.0).numpy(), torch.tensor([-9, 2, 7]).numpy()
    doubled, total = made.interpret(*data)
    assert doubled.tolist() == [0, 2, 4, 6, 8]
    assert total.tolist() == [-10, 4, 8]
    assert into_range(func, []).body.results == func.body.results


def test_which_checks_may_wait() -> None:
    i = param("i", tensor("i64", 3))
    assert may_wait([IndexCheck(i, 0, 4, (), "gather")])
    assert not may_wait([IndexCheck(i, 0, 4, (-100,), "cross_entropy")])  # -100 has a meaning
    with_size = IndexCheck(i, 0, symbol("n", 0, 99), (), "gather")
    assert not may_wait([with_size])


def test_the_answer() -> None:
    assert ask(torch.tensor([[3, -2], [9, 0]]))() == (-2, 9)


def rows(table: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.embedding(index, table) * 2


def loss(scores: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(scores, index)  # with an index to ignore


@pytest.mark.parametrize("ahead", ["cuda", "cpu"])
@pytest.mark.parametrize("fn", [rows, loss], ids=lambda f: f.__name__)
def test_wrong_indices_are_refused(fn: Any, ahead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that works ahead of its answers, and on one that does not."""
    monkeypatch.setattr(dynamo_backend, "_AHEAD", ahead)
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
    assert ("max(%index" in str(GRAPHS[-2].func)) == (ahead == "cpu" and fn is rows)
    for bad in (width, 10**9, -1):
        wrong = index.clone()
        wrong[3] = bad
        with pytest.raises(IndexError, match=f"{bad} in argument 'index'"):
            call(table.float().requires_grad_(), wrong)
    assert torch.equal(call(table.float(), index), call(table.float(), index))
