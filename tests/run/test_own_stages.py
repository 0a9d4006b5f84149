"""A stage that a backend made goes through it once more: lowered code stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stack
import stack.plugins as plugins
from stack.commands.run import runner
from stack.ir import Func, parse
from stack.ir.files import large_constants
from stack.rewrite import Pipeline
from stack.rewrite.check import TOLERANCE, as_list, difference
from stack.rewrite.inputs import random_inputs

torch = pytest.importorskip("torch")
functional = torch.nn.functional
Program = tuple[Callable[..., Any], tuple[Any, ...]]

x, w = torch.randn(6, 20), torch.randn(20, 24)
PROGRAMS: dict[str, Program] = {
    "pool": (lambda x: functional.max_pool2d(x, 2), (torch.randn(1, 2, 8, 8),)),
    "sort": (lambda x: torch.sort(x, 1)[0], (x,)),
    "product": (lambda x, w: functional.gelu(x @ w), (x, w)),
    "attention": (lambda x: torch.softmax(x @ x.T, -1) @ x, (x,)),
    "loss": (lambda x, t: functional.cross_entropy(x, t), (x, torch.tensor([1, 2, 3, 0, 1, 5]))),
    "scan": (lambda x: torch.cumsum(x, 1) * 2, (x,)),
    "scatter": (lambda x: x.index_add(0, torch.tensor([2, 0]), x[3:5]), (x,)),
    "table": (lambda x: x + torch.arange(40_000.0)[:20], (x,)),
    "window": (lambda x, k: functional.relu(functional.conv1d(x, k)),
               (torch.randn(1, 3, 16), torch.randn(4, 3, 3))),
}  # fmt: skip


def again(func: Func) -> Func:
    """The function of its text."""
    return parse(str(func), {d.digest: d.array for d in large_constants([func]).values()})


@pytest.mark.each
@pytest.mark.parametrize("backend", ["mlir", "triton", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_stages_lower_to_what_they_lowered_to(backend: str, name: str) -> None:
    fn, args = PROGRAMS[name]
    func, stages = stack.trace(fn, *args), plugins.load("stack.backends", backend).lowering.stages
    made: dict[str, Func] = {}
    for stage, passes in stages:
        func = made[stage] = Pipeline(passes).run(func).func
    for stage in ("fused", "tiled", "loop"):
        if stage in made:
            found = again(made[stage])
            for _, passes in stages:
                found = Pipeline(passes).run(found).func
            assert found is func, stage


@pytest.mark.each
@pytest.mark.parametrize("stage", ["fused", "tiled", "loop"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_stages_run_again(name: str, stage: str) -> None:
    fn, args = PROGRAMS[name]
    func = stack.compile(fn, *args, backend="mlir").run[stage].func
    assert func is not None
    inputs = random_inputs(func, 0)
    found = runner(again(func), "mlir")(inputs)
    for got, want, result in zip(
        found, as_list(func.interpret(*inputs)), func.results, strict=True
    ):
        assert difference(want, got, result.dtype) <= TOLERANCE.get(result.dtype.name, 0.0)
