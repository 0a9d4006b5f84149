"""The collector is off while a program is compiled, and as it was before and after."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import stack
import stack.plugins as plugins
from stack.cpython import held_back
from stack.errors import StackError
from stack.run.backend import Backend, Executable


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("before", [True, False])
def test_it_is_as_it_was(before: bool) -> None:
    (gc.enable if before else gc.disable)()
    with held_back():
        assert not gc.isenabled()
        with held_back():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() is before
    with pytest.raises(ValueError), held_back():
        raise ValueError
    assert gc.isenabled() is before


@pytest.mark.parametrize("fails", [True, False])
def test_off_in_a_backend(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    torch = pytest.importorskip("torch")
    seen: list[bool] = []
    inner = plugins.load
    mlir: Backend = inner("stack.backends", "mlir")

    def compile_(func: Any, options: dict[str, Any]) -> Executable:
        seen.append(gc.isenabled())
        if fails:
            raise StackError("no")
        return Executable(run=lambda arrays: [arrays[0] + 1])

    fake = replace(mlir, compile=compile_)
    monkeypatch.setattr(plugins, "load", lambda g, n: fake if n == "mlir" else inner(g, n))
    gc.enable()
    x = torch.ones(3)
    if fails:
        with pytest.raises(StackError):
            stack.compile(lambda y: y + 1, x)
    else:
        stack.compile(lambda y: y + 1, x)
    assert seen == [False]
    assert gc.isenabled()


def test_off_while_torch_reads_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from stack.frontends.torch.compile import guarded_calls

    gc.enable()
    seen: list[bool] = []
    real = guarded_calls.compile_graph

    def compile_graph(*args: Any, **options: Any) -> Any:
        seen.append(gc.isenabled())  # Dynamo called: it has read the program
        return real(*args, **options)

    monkeypatch.setattr(guarded_calls, "compile_graph", compile_graph)
    compiled = stack.compile(lambda x: x + 1, torch.ones(3))
    assert seen == [False] and gc.isenabled()
    compiled(torch.ones(5))
    assert seen == [False, False] and gc.isenabled()
