"""Calls of programs on dense arrays: results, layouts, and which arrays are inspected first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stack
from stack.calls.graph import CompiledGraph
from stack.frontends.torch.program.address_calls import row_major
from stack.run.backend import CallDense

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The addresses of each call of a stand-in that runs the program on the arrays it is given."""
    made: list[list[int]] = []

    def call_dense(self: CompiledGraph, _: Any) -> CallDense:
        def run(at: list[int], array: Callable[[int], Any]) -> list[Any]:
            arrays = [array(i) for i in range(len(at))]
            assert [a.data_ptr() for a in arrays] == at
            assert all(a.stride() == row_major(a.shape) for a in arrays)
            made.append(at)
            return self.execute(self.ready(arrays), arrays)

        return run

    monkeypatch.setattr(CompiledGraph, "by_address", lambda *_: (None, None))
    monkeypatch.setattr(CompiledGraph, "call_dense", call_dense)
    return made


def draw(*shape: int, seed: int = 0) -> Any:
    made = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return torch.from_numpy(made)


def test_the_second_call_inspects_nothing(calls: list[list[int]]) -> None:
    x, gain = draw(7, 13), draw(13, seed=1)
    compiled = stack.compile(lambda x, gain: (x * gain, x.T.exp(), (x + gain)[1:]), x, gain)
    for count in range(4):
        x = draw(7, 13, seed=count)
        found = compiled(x, gain)
        wanted = x * gain, x.T.exp(), (x + gain)[1:]
        assert len(calls) == count
        for a, b in zip(found, wanted, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b)


def test_arguments_and_results_with_axes_in_another_order(calls: list[list[int]]) -> None:
    x = draw(2, 5, 3, 4).to(memory_format=torch.channels_last)
    compiled = stack.compile(lambda x: torch.tanh(x) * 2, x)
    for count in range(3):
        found = compiled(x)
        assert len(calls) == count
        assert found.stride() == x.stride()
        torch.testing.assert_close(found, torch.tanh(x) * 2)


def test_other_arguments_are_inspected(calls: list[list[int]]) -> None:
    x = draw(6, 6)
    compiled = stack.compile(torch.exp, x)
    compiled(x)
    for other in (draw(6, 12)[:, ::2], x.T, x.double(), draw(5, 6)):
        compiled(other)
        assert not calls
        torch.testing.assert_close(compiled(x), x.exp())
        calls.clear()


def test_modes_are_those_of_the_call(calls: list[list[int]]) -> None:
    x, w = draw(6, 6), draw(6, 6, seed=1)
    compiled = stack.compile(lambda x, w: torch.relu(x @ w), x, w)
    for _ in range(2):
        compiled(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x, w).dtype is torch.bfloat16
    with torch.enable_grad():
        held = w.clone().requires_grad_()
        compiled(x, held).sum().backward()
        assert held.grad is not None
    with torch.inference_mode():
        assert compiled(x, w).is_inference() == torch.relu(x @ w).is_inference()
    torch.testing.assert_close(compiled(x, w), torch.relu(x @ w))
