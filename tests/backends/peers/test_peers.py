"""The peers give what the interpreter gives, and say what they did."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from peer_cases import (
    PROGRAMS,
    agree,
    assert_aligned,
    backend,
    block,
    case_of,
    check,
    lines,
)

import stack
from stack.errors import BackendMissing, StackError
from stack.measure.systems import capture_program
from stack.run.backend import Executable
from stack.run.compile import find_backend
from stack.run.frontend import Captured
from stack.run.trace import find_frontend

QUICK = ["eager", "xla"]


def native(name: str, captured: Captured, options: dict[str, Any]) -> Executable:
    """A peer's own path on the user's callable."""
    peer = backend(name).peer
    assert peer is not None
    assert peer.native is not None
    return peer.native(captured, options)


@pytest.mark.each
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize(("model", "frontend"), PROGRAMS)
def test_replay(name: str, model: str, frontend: str) -> None:
    case = block(model, frontend)
    executable = backend(name).compile(case.func, {})
    check(executable, case)
    assert_aligned(executable, case)
    assert executable.peak_bytes


@pytest.mark.parametrize(("model", "frontend"), PROGRAMS)
def test_eager_native(model: str, frontend: str) -> None:
    case = block(model, frontend)
    executable = native("eager", case.captured, {})
    check(executable, case)
    assert all(line.startswith("models") for line in lines(executable))
    assert {k.kind for k in executable.kernels} == {"library"}


def test_eager_native_of_nested_values_and_checked_indices() -> None:
    """Results of the user are in a dict with other values; index checks are results of ours."""
    torch = pytest.importorskip("torch")

    def nested(batch: dict[str, Any], pair: tuple[Any, Any]) -> dict[str, Any]:
        rows = torch.nn.functional.embedding(batch["ids"] + 1, pair[0])
        total = rows.sum(-1)
        return {"none": None, "same": pair[1], "total": total, "parts": [rows, (total, 3)]}

    ids, table, x = torch.randint(0, 6, (5,)), torch.randn(7, 4), torch.randn(2)
    case = case_of(nested, ({"ids": ids, "scale": 2.0}, (table, x)), "torch")
    results = case.func.results
    assert len(results) == 3  # rows, total, and that all indices are in the table
    check(native("eager", case.captured, {}), case)

    def writes(x: Any) -> Any:
        x.add_(1)
        return x * 2

    case = case_of(writes, (torch.randn(3),), "torch")
    found = native("eager", case.captured, {}).run(case.arrays)
    agree(found, case.expected)


def test_a_program_that_writes_to_its_weights_is_no_reference() -> None:
    torch = pytest.importorskip("torch")
    norm = torch.nn.BatchNorm1d(3)
    case = case_of(norm, (torch.randn(4, 3),), "torch")
    with pytest.raises(StackError, match="writes to its weights"):
        native("eager", case.captured, {}).run(case.arrays)


@pytest.mark.parametrize("model", ["llama_block", "gpt2_block"])
def test_xla_native(model: str) -> None:
    case = block(model, "jax")
    executable = native("xla", case.captured, {})
    check(executable, case)
    assert all(line.startswith("models") for line in lines(executable))


@pytest.mark.parametrize("how", ["compile", "native"])
def test_xla_shows_its_hlo_and_counts_it(how: str) -> None:
    case = block("llama_block", "jax")
    if how == "native":
        executable = native("xla", case.captured, {})
    else:
        executable = backend("xla").compile(case.func, {})
    text = executable.artifacts["hlo"]
    text = text if isinstance(text, str) else text()
    assert text.startswith("HloModule")
    for kernel in executable.kernels:
        assert f"%{kernel.name} = " in text
    libraries = [k for k in executable.kernels if k.kind == "library"]
    assert len(libraries) >= len([n for n in case.func.nodes if n.op == "dot"])


def _check_inductor(executable: Any, case: Any) -> None:
    check(executable, case)
    text = executable.artifacts["inductor"]
    generated = [k for k in executable.kernels if k.kind == "generated"]
    assert generated and all(f"{k.name} = async_compile" in text for k in generated)
    assert all('extern "C"' in k.text and k.extension == "cpp" for k in generated)
    assert sum(k.kind == "library" for k in executable.kernels) >= 5
    assert executable.peak_bytes


def test_inductor_replay() -> None:
    case = block("llama_block", "jax")
    executable = backend("inductor").compile(case.func, {})
    _check_inductor(executable, case)
    assert_aligned(executable, case)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "frontend"), PROGRAMS)
def test_inductor_replay_of_all(model: str, frontend: str) -> None:
    case = block(model, frontend)
    executable = backend("inductor").compile(case.func, {})
    _check_inductor(executable, case)
    assert_aligned(executable, case)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama_block", "gpt2_block"])
def test_inductor_native(model: str) -> None:
    case = block(model, "torch")
    executable = native("inductor", case.captured, {})
    _check_inductor(executable, case)
    assert all(line.startswith("models") for line in lines(executable))


@pytest.mark.slow
def test_inductor_modes_and_caches() -> None:
    case = block("gpt2_block", "torch")
    options = {"mode": "max-autotune-no-cudagraphs", "fresh": True}
    executable = backend("inductor").compile(case.func, options)
    check(executable, case)
    assert "max-autotune-no-cudagraphs" in executable.note
    assert "an empty cache" in executable.note


def test_inductor_refuses_an_unknown_mode() -> None:
    with pytest.raises(StackError, match="mode"):
        backend("inductor").compile(block("gpt2_block", "torch").func, {"mode": "fastest"})


def test_native_inductor_compiles_each_time() -> None:
    import torch

    class Scale(torch.nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    x = torch.arange(4.0)
    with torch._dynamo.config.patch(recompile_limit=1):
        for by in (2.0, 3.0, 3.0):
            case = case_of(Scale(by), (x,), "torch")
            executable = native("inductor", case.captured, {})
            assert executable.kernels
            np.testing.assert_array_equal(executable.run(case.arrays)[0], np.arange(4.0) * by)


UNTUNED = {"seconds": 0}


@pytest.mark.every(2)
@pytest.mark.parametrize(("model", "frontend"), [("llama_block", "torch"), ("gpt2_block", "jax")])
def test_tvm_replay(model: str, frontend: str, capfd: pytest.CaptureFixture[str]) -> None:
    case = block(model, frontend)
    executable = backend("tvm").compile(case.func, UNTUNED)
    check(executable, case)
    assert_aligned(executable, case)
    assert executable.peak_bytes
    assert "default CPU schedules, untuned" in executable.note
    assert "weights are arguments" in executable.note
    text = executable.artifacts["tir"]
    text = text if isinstance(text, str) else text()
    assert all(f"def {k.name}(" in text for k in executable.kernels)
    assert all("prim_func" in k.text for k in executable.kernels)
    assert capfd.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(("model", "frontend"), PROGRAMS)
def test_tvm_tuned_on_all(
    model: str, frontend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACK_CACHE_DIR", str(tmp_path))
    case = block(model, frontend)
    bound = case.arrays[: len(case.captured.bound)]
    executable = backend("tvm").compile(case.func, {"seconds": 5, "trials": 8, "bound": bound})
    check(executable, case)
    assert_aligned(executable, case)
    assert ("weights are constants" in executable.note) == bool(bound)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama_block", "gpt2_block"])
def test_tvm_native(model: str) -> None:
    case = block(model, "torch")
    executable = native("tvm", case.captured, UNTUNED)
    check(executable, case)
    assert all(line.startswith("models") for line in lines(executable))


PRODUCT = """
func @f(%x: f32[32, 64], %w: f32[64, 48]) -> (f32[32, 48]) at tensor {
  %y = dot(%x, %w) {rule="m k, k n -> m n"} : f32[32, 48]
  %z = exp(%y) : f32[32, 48]
  return %z
}
"""


def test_tvm_tuning_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setenv("STACK_CACHE_DIR", str(tmp_path))
    func = stack.parse(PRODUCT)
    x = rng.standard_normal((32, 64), dtype=np.float32)
    w = rng.standard_normal((64, 48), dtype=np.float32) / 8
    options = {"seconds": 0.1, "trials": 2}
    first = backend("tvm").compile(func, options)
    np.testing.assert_allclose(first.run([x, w])[0], np.exp(x @ w), rtol=1e-4)
    assert "MetaSchedule trials" in first.note and "cache" not in first.note
    again = backend("tvm").compile(func, options)
    np.testing.assert_allclose(again.run([x, w])[0], np.exp(x @ w), rtol=1e-4)
    assert "found in the cache" in again.note and "seconds" not in again.note
    for entry in tmp_path.rglob("*.obj"):
        entry.write_bytes(entry.read_bytes()[:-7])  # half-written
    third = backend("tvm").compile(func, options)
    np.testing.assert_allclose(third.run([x, w])[0], np.exp(x @ w), rtol=1e-4)
    assert "cache" not in third.note


def test_inductor_with_frozen_weights(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(24, 8)
    x = torch.from_numpy(rng.standard_normal((5, 24), dtype=np.float32))
    program = capture_program(find_frontend(layer, (x,)), layer, (x,))
    executable = native("inductor", program.captured, {"freezing": True})
    assert "weights frozen" in executable.note
    assert "_frozen_param" in str(executable.artifacts["inductor"])
    np.testing.assert_allclose(
        executable.run(program.storage)[0], layer(x).detach(), rtol=1e-5, atol=1e-6
    )


def test_tvm_gives_up_a_candidate_far_behind_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = importlib.import_module("stack.backends.peer_tvm_tune")
    calls: list[tuple[object, ...]] = []

    class Library:
        def __init__(self, took: list[float]) -> None:
            self.took = took

        def __getitem__(self, name: str) -> Callable[..., None]:
            return lambda *args: calls.append((name, *args))

        def time_evaluator(self, *_: object, **__: object) -> Callable[..., SimpleNamespace]:
            return lambda *args: SimpleNamespace(results=self.took)

    clock = iter([0.0, 9.0, 10.0, 10.5, 20.0, 22.5])
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: next(clock))
    built = {"a": Library([1, 2]), "b": Library([3]), "c": Library([4])}
    monkeypatch.setattr(tuning, "_built", built)
    ms = tuning.ms
    info = ms.arg_info.TensorInfo("float32", [3])
    jobs = [ms.runner.RunnerInput(name, "llvm", [info, info]) for name in "abc"]
    done = tuning._Runner().run(jobs)
    found = [[float(s) for s in future.result().run_secs] for future in done]
    assert found == [[1, 2], [3], [2.5]], "2.5 is more than twice the best, which is 1"
    assert len(calls) == 3 and len({id(a) for call in calls for a in call[1:]}) == 1


@pytest.mark.slow
def test_tvm_search_led_by_its_cost_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """More trials than are drawn at random; what was found serves whoever names the folder."""
    tuning = importlib.import_module("stack.backends.peer_tvm_tune")
    monkeypatch.setattr(tuning, "TRIALS", 2)
    monkeypatch.setattr(tuning, "LED_BATCH", 2)
    monkeypatch.setenv("STACK_CACHE_DIR", str(tmp_path / "elsewhere"))
    func = stack.parse(PRODUCT.replace("32, ", "256, "))
    x = rng.standard_normal((256, 64), dtype=np.float32)
    w = rng.standard_normal((64, 48), dtype=np.float32) / 8
    options = {"seconds": 60, "trials": 4, "cache": str(tmp_path / "kept")}
    first = backend("tvm").compile(func, options)
    np.testing.assert_allclose(first.run([x, w])[0], np.exp(x @ w), rtol=1e-4)
    assert "4 MetaSchedule trials" in first.note
    assert "found in the cache" in backend("tvm").compile(func, options).note
    more = backend("tvm").compile(func, {**options, "seconds": 90, "trials": 6})
    assert "6 MetaSchedule trials" in more.note, "a search goes on from what was kept"
    assert "found in the cache" not in more.note
    assert not (tmp_path / "elsewhere").exists()


def test_tvm_names_the_op_that_it_cannot_take() -> None:
    func = stack.parse(
        """
func @f(%x: f32[8]) -> (f32[8]) at tensor {
  %y = lgamma(%x) : f32[8]
  return %y
}
"""
    )
    with pytest.raises(StackError, match="lgamma"):
        backend("tvm").compile(func, UNTUNED)


@pytest.mark.parametrize(
    ("name", "frontend"), [("xla", "torch"), ("inductor", "jax"), ("tvm", "jax")]
)
def test_native_refuses_the_other_framework(name: str, frontend: str) -> None:
    with pytest.raises(StackError, match="another framework"):
        native(name, block("llama_block", frontend).captured, {})


@pytest.mark.parametrize("name", QUICK)
def test_element_types_cross(name: str) -> None:
    func = stack.parse(
        """
func @f(%x: bf16[3, 4], %i: i32[4], %t: bool[4]) -> (bf16[3, 4], i64[4], bool[4]) at tensor {
  %a = add(%x, %x) : bf16[3, 4]
  %j = cast(%i) : i64[4]
  %k = add(%j, %j) : i64[4]
  %n = not(%t) : bool[4]
  return %a, %k, %n
}
"""
    )
    x = (np.arange(12, dtype=np.float32).reshape(3, 4).view(np.uint32) >> 16).astype(np.uint16)
    big = np.array([1, 2, 3, 1 << 30], np.int32)
    flags = np.array([True, False, True, False])
    a, k, n = backend(name).compile(func, {}).run([x, big, flags])
    assert a.dtype == np.uint16 and k.dtype == np.int64 and n.dtype == np.bool_
    doubled = (a.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(doubled, 2 * np.arange(12, dtype=np.float32).reshape(3, 4))
    np.testing.assert_array_equal(k, 2 * big.astype(np.int64))
    np.testing.assert_array_equal(n, ~flags)


@pytest.mark.parametrize("name", QUICK)
def test_loops_and_branches(name: str) -> None:
    import jax

    def f(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return jax.lax.cond(c[0] > 4, lambda v: v + 1, lambda v: v * 2, c), c.sum()

        return jax.lax.scan(step, x, None, length=5)

    case = case_of(f, (np.arange(3, dtype=np.float32) + 1,), "jax")
    executable = backend(name).compile(case.func, {})
    for result, wanted in zip(executable.run(case.arrays), case.expected, strict=True):
        np.testing.assert_allclose(result, wanted)


@pytest.mark.parametrize(
    ("name", "extra"), [("eager", "torch"), ("inductor", "torch"), ("xla", "jax"), ("tvm", "tvm")]
)
def test_a_missing_package_is_named(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend(name).missing() is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    message = backend(name).missing()
    assert message is not None and f"'.[{extra}]'" in message
    with pytest.raises(BackendMissing, match=extra):
        find_backend(name)


@pytest.mark.parametrize("name", ["eager", "inductor", "xla", "tvm"])
def test_importing_a_peer_imports_no_framework(name: str) -> None:
    import subprocess
    import sys

    code = (
        f"import sys, stack.backends.{name}\n"
        "print([m for m in ('torch', 'jax', 'tvm') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_printed(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    case = block("llama_block", "jax")
    executable = backend(name).compile(case.func, {})
    executable.run(case.arrays)
    assert executable.kernels and executable.peak_bytes
    assert capfd.readouterr().out == ""
