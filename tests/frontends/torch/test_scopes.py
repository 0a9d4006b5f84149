"""Model code that belongs to no imported module: run by exec, by runpy, or loaded by its file."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import stack
from stack.frontends.torch.tracing.dynamo import unimported

torch = pytest.importorskip("torch")

SOURCE = """
import functools
import torch
import torch.nn.functional as F
SCALE = 2.0
def helper(x): return F.relu(x) * SCALE
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(8, 8)
        self.act = helper
    def forward(self, x): return self.act(self.w(x))
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())
    def forward(self, x): return self.blocks(x) + SCALE
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g): return g * 2 * ctx.saved_tensors[0]
def square(x): return Square.apply(x) + helper(x)
class Config:
    factor = 3
    def scaled(self, x): return helper(x) * self.factor
config = Config()
def configured(x): return config.scaled(x)
partial = functools.partial(lambda x, y: helper(x) + y, y=1)
def reader(x): return helper(x) if __name__ != "builtins" else x
"""
X = torch.linspace(-1, 1, 32).reshape(4, 8)


def by_exec(name: str | None = "kernels") -> dict[str, Any]:
    scope: dict[str, Any] = {} if name is None else {"__name__": name}
    exec(compile(SOURCE, "kernels.py", "exec"), scope)
    return scope


@pytest.fixture(params=["exec", "exec as json", "exec as main", "exec, no name", "spec", "runpy"])
def scope(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The globals of the code above, by some ways in which they are no imported module's."""
    path = tmp_path / "kernels_by_file.py"
    path.write_text(SOURCE)
    if request.param == "runpy":
        return runpy.run_path(str(path))
    if request.param == "spec":
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return vars(module)
    names = {"exec": "kernels", "exec as json": "json", "exec as main": "__main__"}
    return by_exec(names.get(request.param))


@pytest.mark.each
@pytest.mark.parametrize("target", ["Model", "square", "configured", "partial"])
def test_values_and_changes_of_globals(scope: dict[str, Any], target: str) -> None:
    found = scope[target]
    program = found() if isinstance(found, type) else found
    own = scope["helper"].__globals__
    name = own.get("__name__")
    compiled = stack.compile(program, X)
    torch.testing.assert_close(compiled(X), program(X))
    own["SCALE"] = 5.0
    torch.testing.assert_close(compiled(X), program(X))
    assert own.get("__name__") == name
    assert name not in sys.modules or vars(sys.modules[name]) is not own


def test_two_of_one_name() -> None:
    first, second = by_exec(), by_exec()
    second["SCALE"] = 7.0
    both = stack.compile(lambda x: first["helper"](x) + second["helper"](x), X)
    torch.testing.assert_close(both(X), X.relu() * 9)
    first["SCALE"] = 1.0
    torch.testing.assert_close(both(X), X.relu() * 8)


def test_a_trace_and_a_function_around_it() -> None:
    model = by_exec()["Model"]()
    assert len(stack.trace(model, X).params) == 5
    outer = stack.compile(lambda x: model(x) * 2, X)
    torch.testing.assert_close(outer(X), model(X) * 2)


def test_only_what_is_not_imported_is_found() -> None:
    scope = by_exec()
    model = scope["Model"]()
    assert [s for s in unimported(model)] == [scope]
    assert unimported(torch.nn.Linear(2, 2)) == []
    assert unimported(test_two_of_one_name) == []
    assert unimported(lambda x: model(x)) == [scope]


def test_a_name_that_is_read_stays() -> None:
    scope = by_exec()
    assert unimported(scope["reader"]) == []
