"""Small transformer blocks from both frontends, and what every peer must give for them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from stack.demos import models, transformer
from stack.ir.func import Func
from stack.run.backend import Backend, Executable
from stack.run.trace import find_frontend

CONFIGS: dict[str, Any] = {
    "llama_block": models.LlamaConfig(width=32, heads=4, kv_heads=2, ffn=48, seq=8),
    "gpt2_block": models.GPT2Config(width=32, heads=4, ffn=64, seq=8),
}
PROGRAMS = [(model, frontend) for model in CONFIGS for frontend in ("torch", "jax")]


@dataclass
class Case:
    captured: Any
    arrays: list[np.ndarray]
    expected: list[np.ndarray]

    @property
    def func(self) -> Func:
        return self.captured.func


def case_of(fn: Any, args: tuple[Any, ...], frontend_name: str) -> Case:
    frontend = find_frontend(fn, args, frontend_name)
    captured = frontend.capture(fn, args)
    given = [*captured.bound, *captured.flatten(*args)]
    arrays = [
        frontend.to_numpy(a, p.dtype) for a, p in zip(given, captured.func.params, strict=True)
    ]
    expected = captured.func.interpret(*arrays)
    return Case(captured, arrays, list(expected) if isinstance(expected, tuple) else [expected])


@cache
def block(model: str, frontend: str) -> Case:
    fn, args = getattr(transformer, model)(frontend, CONFIGS[model])
    return case_of(fn, args, frontend)


def backend(name: str) -> Backend:
    return importlib.import_module(f"stack.backends.{name}").BACKEND


def check(executable: Executable, case: Case) -> None:
    """Results agree with the interpreter, both ways of running; records say what they should."""
    results = executable.run(case.arrays)
    agree(results, case.expected)
    assert executable.prepare is not None
    assert executable.call is not None
    assert executable.finish is not None
    prepared = executable.prepare(case.arrays)
    executable.call(prepared)
    agree(executable.finish(executable.call(prepared)), case.expected)
    for result in results:
        result[...] = 0  # the caller's own
    agree(executable.run(case.arrays), case.expected)
    assert executable.kernels
    assert {k.kind for k in executable.kernels} <= {"generated", "library"}
    assert executable.counts_what
    assert executable.note


def agree(results: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.flags.c_contiguous and result.flags.writeable
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


def lines(executable: Executable) -> set[str]:
    return {line for k in executable.kernels for line in k.source}


def assert_aligned(executable: Executable, case: Case) -> None:
    """Every contraction of the program is in a kernel, with its line; no line is made up."""
    func = case.func
    dots = [n for n in func.nodes if n.op == "dot"]
    names = {name for k in executable.kernels for name in k.stage_node.split()}
    assert {func.body.names[n] for n in dots} <= names
    known = {line.split(" ")[0] for places in func.body.locs.values() for line in places}
    assert lines(executable) <= known
    assert {func.body.locs[n][0].split(" ")[0] for n in dots} <= lines(executable)
    assert sum(k.flops for k in executable.kernels) > 0
    assert all(k.bytes > 0 for k in executable.kernels if k.ops)
