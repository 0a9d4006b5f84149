"""stack.compile: what a capture took for granted is looked at before each call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stack

FACTOR = 2.0
TABLE = torch.arange(3.0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.noise = nn.Dropout(1.0)
        self.norm = nn.BatchNorm1d(3)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.noise(self.norm(self.inner(x))) * self.scale * FACTOR + TABLE


def replaced(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.randn_like(weight))


def wider(block: Block) -> None:
    block.inner = nn.Linear(3, 3, bias=False)


CHANGES: dict[str, Callable[[Block], Any]] = {
    "an attribute": lambda m: setattr(m, "scale", 3.0),
    "training": lambda m: m.train(),
    "training of one inside": lambda m: m.noise.train(),
    "a module": wider,
    "a hook": lambda m: m.inner.register_forward_hook(lambda *a: a[-1] * 3),
    "a hook of the whole": lambda m: m.register_forward_pre_hook(lambda _, a: (a[0] + 1,)),
    "a forward": lambda m: setattr(m.inner, "forward", lambda x: x * 5),
    "the forward of the whole": lambda m: setattr(m, "forward", lambda x: x * 5),
}
WRITES: dict[str, Callable[[Block], Any]] = {
    "nothing": lambda m: None,
    "a parameter": lambda m: m.inner.weight.add_(1),
    "a buffer": lambda m: m.norm.running_mean.add_(1),
    "another parameter": lambda m: setattr(m.inner, "weight", replaced(m.inner.weight)),
    "another buffer": lambda m: setattr(m.norm, "running_mean", torch.randn(3)),
    "a state dict": lambda m: m.load_state_dict(Block().state_dict()),
    "an attribute that is not read": lambda m: setattr(m, "note", "hello"),
}


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def made() -> tuple[Block, Any, torch.Tensor]:
    module, x = Block().eval(), torch.randn(4, 3)
    compiled = stack.compile(module, x)
    torch.testing.assert_close(compiled(x), module(x))
    return module, compiled, x


def agree(compiled: Any, module: Block, x: torch.Tensor) -> None:
    """Buffers too: eager gets a module of its own."""
    twin = copy.deepcopy(module)
    torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(dict(module.named_buffers()), dict(twin.named_buffers()))


@pytest.mark.every(2)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_captured_again(change: str) -> None:
    module, compiled, x = made()
    CHANGES[change](module)
    agree(compiled, module, x)
    assert len(compiled.graphs) == 2
    assert "no longer holds" in compiled.run.notes["captured again"]
    agree(compiled, module, x)
    assert len(compiled.graphs) == 2


@pytest.mark.every(2)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_in_place_needs_no_capture(write: str) -> None:
    module, compiled, x = made()
    WRITES[write](module)
    agree(compiled, module, x)
    assert len(compiled.graphs) == 1


def test_back_again_is_the_first_graph() -> None:
    module, compiled, x = made()
    module.scale = 3.0
    agree(compiled, module, x)
    module.scale = 2.0
    agree(compiled, module, x)
    assert len(compiled.graphs) == 2


@pytest.mark.parametrize(("name", "value"), [("FACTOR", 5.0), ("TABLE", torch.ones(3))])
def test_globals(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    module, compiled, x = made()
    monkeypatch.setitem(globals(), name, value)
    agree(compiled, module, x)
    assert len(compiled.graphs) == (2 if name == "FACTOR" else 1)  # a tensor is an input


def test_an_array_of_numpy_that_a_function_closes_over() -> None:
    table = np.arange(3, dtype=np.float32)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.as_tensor(table)

    x = torch.randn(4, 3)
    compiled = stack.compile(fn, x)
    torch.testing.assert_close(compiled(x), fn(x))
    table += 1
    torch.testing.assert_close(compiled(x), fn(x))
    table = np.ones(3, dtype=np.float32)
    torch.testing.assert_close(compiled(x), fn(x))


def test_what_a_function_closes_over() -> None:
    factor, offset = 2.0, torch.ones(3)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * factor + offset

    x = torch.randn(4, 3)
    compiled = stack.compile(fn, x)
    torch.testing.assert_close(compiled(x), fn(x))
    factor = 3.0
    torch.testing.assert_close(compiled(x), fn(x))
    offset = torch.zeros(3)
    torch.testing.assert_close(compiled(x), fn(x))
    offset += 1
    torch.testing.assert_close(compiled(x), fn(x))
    assert len(compiled.graphs) == 2


@contextmanager
def default_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("mode", [default_double, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_modes(mode: Callable[[], Any]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x @ x + torch.ones(3)

    x = torch.randn(3, 3)
    compiled = stack.compile(fn, x)
    with mode():
        found, want = compiled(x), fn(x)
    assert found.dtype == want.dtype
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)  # the product is of f32
    torch.testing.assert_close(compiled(x), fn(x))
    assert len(compiled.graphs) == 2


def test_arguments_by_name() -> None:
    def fn(x: torch.Tensor, scale: torch.Tensor, *, shift: float = 0.0) -> torch.Tensor:
        return x * scale + shift

    x, y = torch.randn(4), torch.randn(4)
    compiled = stack.compile(fn, x, y)
    torch.testing.assert_close(compiled(scale=y, x=x), x * y)
    assert len(compiled.graphs) == 1
    torch.testing.assert_close(compiled(x[:2], scale=y[:2]), x[:2] * y[:2])
    assert len(compiled.graphs) == 2
    torch.testing.assert_close(compiled(x, y, shift=1.0), x * y + 1)
    with pytest.raises(TypeError, match="scale"):
        compiled(x=x)


def test_modes_that_change_no_value() -> None:
    module, compiled, x = made()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            agree(compiled, module, x)
    finally:
        torch.set_num_threads(threads)
    with torch.enable_grad():
        found = compiled(x)
        assert found.requires_grad
        torch.testing.assert_close(found, module(x))
    assert not compiled(x).requires_grad


def test_many_changes_are_told_once() -> None:
    module, compiled, x = made()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(12):
            module.scale = float(i + 3)
            agree(compiled, module, x)
    told = [str(w.message) for w in caught if "captured" in str(w.message)]
    assert len(told) == 1
    assert "scale" in told[0]


def test_no_weight_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(*_: object, **__: object) -> str:
        raise AssertionError("a tensor was printed")

    usual = torch.Tensor.__repr__
    monkeypatch.setattr(torch._tensor_str, "_str", printed)
    module = torch.nn.Linear(4, 4)
    compiled = stack.compile(module, torch.randn(2, 4))
    compiled(torch.randn(2, 4))
    assert torch.Tensor.__repr__ is usual
    module.weight = torch.nn.Parameter(torch.zeros(3, 4))
    module.bias = torch.nn.Parameter(torch.zeros(3))
    compiled(torch.randn(2, 4))
    assert len(compiled.graphs) == 2
