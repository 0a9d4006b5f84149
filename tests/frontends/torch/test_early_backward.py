"""The backward graph is lowered while a backend waits for the kernels of the forward graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import stack.plugins as plugins
from stack.backends.mlir import BACKEND
from stack.errors import UnsupportedOp
from stack.ir.func import Func
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Executable

NAME = "waits-for-kernels"
EVENTS: list[str] = []
LOWERED: Counter[str] = Counter()
REFUSED: list[str] = []  # what the compiler says of a backward graph


def compile_kernels(func: Func, options: dict[str, Any]) -> Executable:
    kind = func.name.rpartition("_")[2]
    EVENTS.append(f"{kind} sent")
    if options.get("meanwhile"):
        options["meanwhile"]()
    if REFUSED and kind == "backward":
        raise UnsupportedOp([(REFUSED[0], ())], "")
    EVENTS.append(f"{kind} made")
    return BACKEND.compile(func, options)


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.compiler.reset()  # sizes that other tests passed would be symbolic, see EarlyBackward
    plugins.register("stack.backends", NAME, replace(BACKEND, name=NAME, compile=compile_kernels))
    run = Pipeline.run

    def counted(self: Pipeline, func: Func, **options: Any) -> Any:
        LOWERED[func.name.rpartition("_")[2]] += 1
        return run(self, func, **options)

    monkeypatch.setattr(Pipeline, "run", counted)
    yield
    torch.compiler.reset()
    plugins._ADDED["stack.backends"].pop(NAME)  # pyright: ignore[reportPrivateUsage]
    plugins.load.cache_clear()
    for held in (EVENTS, LOWERED, REFUSED):
        held.clear()


def model(sparse: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 8, sparse=sparse), nn.Linear(8, 4), nn.GELU())


def step(net: nn.Module, call: Any) -> list[Any]:
    net.zero_grad()
    found = call(torch.tensor([1, 4, 4]))
    EVENTS.append("forward ran")
    found.square().sum().backward()
    return [p.grad for p in net.parameters()]


def test_the_backward_graph_is_lowered_once_before_the_forward_pass_runs() -> None:
    net = model()
    want = [g.clone() for g in step(net, net)]
    EVENTS.clear()
    found = step(net, torch.compile(net, backend="stack", options={"backend": NAME}))
    for mine, other in zip(found, want, strict=True):
        torch.testing.assert_close(mine, other)
    assert [
        *("forward sent", "backward sent", "forward made", "forward ran"),
        *("backward sent", "backward made"),
    ] == EVENTS
    stages = len(BACKEND.lowering.stages)
    assert (LOWERED["forward"], LOWERED["backward"]) == (stages, stages)


def test_a_sparse_gradient_is_not_started() -> None:
    net = model(sparse=True)
    step(net, torch.compile(net, backend="stack", options={"backend": NAME}))
    assert EVENTS.index("forward ran") < len(EVENTS)
    assert "backward sent" not in EVENTS


def test_a_call_without_gradients_starts_nothing() -> None:
    net = model()
    with torch.no_grad():
        torch.compile(net, backend="stack", options={"backend": NAME})(torch.tensor([1]))
    assert EVENTS == ["inference sent", "inference made"]


def test_an_error_in_the_backward_graph_is_raised_by_the_backward_pass() -> None:
    REFUSED.append("aten::nothing")
    net = model()
    with pytest.raises(Exception, match="aten::nothing"):
        step(net, torch.compile(net, backend="stack", options={"backend": NAME}))
    assert EVENTS[-2:] == ["forward ran", "backward sent"]
