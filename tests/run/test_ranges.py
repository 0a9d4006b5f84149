"""Steps of compiled programs in profilers of torch and JAX: kernel, module and source line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stack
from stack import ranges
from stack.calls.graph import CompiledGraph
from stack.ir.parser import parse
from stack.ranges import range_name, recording

torch = pytest.importorskip("torch")
SEED = int(np.random.SeedSequence().generate_state(1)[0])


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.down(torch.relu(self.up(x))), -1)


def profiled(call: Any, *args: Any) -> tuple[Any, list[str]]:
    """The result of a call under torch's profiler, and the names of our ranges in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        result = call(*args)
    return result, [e.name for e in found.events() if e.name.startswith("stack::")]


@pytest.mark.parametrize("way", ["stack.compile", "torch.compile", "freeze"])
def test_each_kernel_has_a_range_with_its_module_and_lines(way: str) -> None:
    torch.manual_seed(SEED)
    model, x = Block().eval(), torch.randn(8, 16)
    with torch.no_grad(), stack.capture() as run:
        if way == "torch.compile":
            compiled = torch.compile(model, backend="stack")
        else:
            compiled = stack.compile(model, x, freeze=way == "freeze")
        expected = compiled(x)
        compiled(x)
        result, names = profiled(compiled, x)
        again, later = profiled(compiled, x)
        assert torch.equal(compiled(x), expected)
    assert torch.equal(result, expected)
    assert torch.equal(again, expected)
    assert names == later
    whole, *steps = names
    assert " " not in whole
    mine = [k for k in run.kernels if any(f"::{k.name} " in name for name in steps)]
    assert len(steps) == len(mine)
    assert steps == [range_name(k.name, k.modules, k.source) for k in mine]
    assert any("[up] test_ranges.py:" in name for name in steps)


def test_without_a_profiler_the_fast_path_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[int] = []
    usual = CompiledGraph.call_flat
    monkeypatch.setattr(CompiledGraph, "call_flat", lambda g, a: slow.append(1) or usual(g, a))
    x, other = torch.randn(5, 7), torch.randn(3, 7)
    with torch.no_grad():
        compiled = stack.compile(lambda x: torch.tanh(x) * 2, x)
        compiled(x)
        assert len(slow) == 1
        profiled(compiled, x)
        compiled(x)
        assert len(slow) == 1
        _, names = profiled(compiled, other)  # captured within the profiler
    assert any("tanh" in name for name in names)


def test_forward_and_backward() -> None:
    torch.manual_seed(SEED)
    model, x = Block(), torch.randn(8, 16)
    compiled = torch.compile(model, backend="stack")
    compiled(x).pow(2).sum().backward()

    def step() -> Any:
        model.zero_grad()
        compiled(x).pow(2).sum().backward()
        return model.up.weight.grad.clone()

    expected = step()
    gradient, names = profiled(step)
    assert torch.equal(gradient, expected)
    wholes = [name for name in names if " " not in name]
    assert len(wholes) == 2
    assert len(names) > 4


def test_a_fallback_and_a_library_call_have_ranges() -> None:
    def mixed(x: Any) -> Any:
        return torch.linalg.inv(x) + torch.digamma(x * x)

    x = torch.eye(3) + torch.rand(3, 3) / 9
    compiled = stack.compile(mixed, x)
    compiled(x)
    _, names = profiled(compiled, x)
    assert any("linalg" in name and "test_ranges.py:" in name for name in names)
    kinds = {k.kind for k in compiled.run.kernels}
    assert "fallback" in kinds
    assert len(names) == 1 + len(compiled.run.kernels)


def test_jax_ranges(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    def scaled(x: Any) -> Any:
        with jax.named_scope("head"):
            y = jax.nn.softmax(x @ x)

        def step(carry: Any, row: Any) -> Any:
            return jax.numpy.tanh(carry + row), carry.sum()

        return jax.lax.scan(step, y[0], y)

    x = jax.numpy.asarray(np.random.default_rng(SEED).standard_normal((6, 6)), "float32")
    compiled = stack.jit(scaled)
    expected = compiled(x)
    with jax.profiler.trace(str(tmp_path)):
        found = compiled(x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(a, b)
    (file,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    names = {str(e.get("name")) for e in events}
    assert "stack::scaled" in names
    for kernel in compiled.run.kernels:
        assert range_name(kernel.name, kernel.modules, kernel.source) in names
    assert any("[head] test_ranges.py:" in name for name in names)


def test_a_program_asks_once_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ranges, "_SOURCES", {"one": lambda: asked.append(1)})
    func = parse(
        "func @f(%x: f32[4, 8]) -> (f32[4, 4], f32[4]) at tensor {\n"
        '  %y = dot(%x, %x) {rule="a k, b k -> a b"} : f32[4, 4]\n'
        '  %s = reduce(%x) {axes=[1], kind="sum"} : f32[4]\n'
        "  return %y, %s\n}"
    )
    compiled = stack.compile(func)
    assert len(compiled.run.kernels) == 2
    compiled(np.ones((4, 8), np.float32))
    assert len(asked) <= 2  # by the program, and by the graph that calls it


def test_ranges_of_all_profilers_that_record(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def source(name: str) -> ranges.OpenRange:
        @contextmanager
        def opened(what: str) -> Generator[None]:
            seen.append(f"{name} in {what}")
            yield
            seen.append(f"{name} out {what}")

        return opened

    monkeypatch.setattr(ranges, "_SOURCES", {})
    assert recording() is None
    ranges.register("off", lambda: None)
    assert recording() is None
    one, two = source("one"), source("two")
    ranges.register("one", lambda: one)
    assert recording() is one
    ranges.register("two", lambda: two)
    opened = recording()
    assert opened is not None
    with opened("x"):
        seen.append("run")
    assert seen == ["one in x", "two in x", "run", "two out x", "one out x"]


def test_names_of_ranges() -> None:
    assert range_name("dot", (), ()) == "stack::dot"
    lines = ("a.py:1", "a.py:2", "b.py:7")
    assert range_name("dot", ("l.0", "l.1"), lines) == "stack::dot [l.0, l.1] a.py:1,2,b.py:7"
