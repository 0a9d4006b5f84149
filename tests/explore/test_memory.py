"""The memory of a run at its peak: which values, from which lines, and how many bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stack
from stack.cli import main
from stack.errors import UsageError
from stack.explore.memory import peak_of
from stack.ir.func import Func
from stack.ir.parser import parse

SEED = int(np.random.SeedSequence().generate_state(1)[0])
DOT = '{rule="a k, k b -> a b"}'


def chain(sizes: list[int]) -> Func:
    """A chain of matmuls, whose intermediates have these numbers of columns."""
    lines = [f"func @f(%x: f32[32, 16]{{weights}}) -> (f32[32, {sizes[-1]}]) at tensor {{{{"]
    weights, last, width = "", "%x", 16
    for i, size in enumerate(sizes):
        weights += f", %w{i}: f32[{width}, {size}]"
        lines.append(
            f'  %y{i} = dot({last}, %w{i}) {DOT} : f32[32, {size}] from "m.py:{i + 1} l.{i}"'
        )
        last, width = f"%y{i}", size
    text = "\n".join([*lines, f"  return {last}", "}}"])
    return parse(text.replace(DOT, f"{{{DOT}}}").format(weights=weights))


def test_the_two_largest_neighbours_of_a_chain() -> None:
    rng = np.random.default_rng(SEED)
    sizes = [16 * int(n) for n in rng.choice(np.arange(4, 40), 6, replace=False)]
    found = peak_of(chain(sizes), {})
    most = max(range(1, 6), key=lambda i: sizes[i - 1] + sizes[i])
    assert {v.name for v in found.values} == {f"y{most - 1}", f"y{most}"}
    assert found.bytes == 4 * 32 * (sizes[most - 1] + sizes[most])
    assert found.name == f"y{most}"
    assert found.arguments == 4 * (32 * 16 + sum(a * b for a, b in zip([16, *sizes], sizes)))
    lines = {line for v in found.values for line in v.lines}
    assert lines == {f"m.py:{i + 1} l.{i}" for i in (most - 1, most)}


def test_a_value_that_is_read_late_stays() -> None:
    func = parse(
        f"""func @f(%x: f32[32, 32], %w: f32[32, 512], %v: f32[512, 32]) -> (f32[32, 32])
  at tensor {{
  %early = dot(%x, %x) {DOT} : f32[32, 32] from "m.py:1"
  %wide = dot(%early, %w) {DOT} : f32[32, 512] from "m.py:2"
  %narrow = dot(%wide, %v) {DOT} : f32[32, 32] from "m.py:3"
  %y = dot(%narrow, %early) {DOT} : f32[32, 32] from "m.py:4"
  return %y
}}"""
    )
    found = peak_of(func, {})
    assert found.values[0].name == "wide"
    assert {v.name for v in found.values} == {"wide", "early", "narrow"}
    assert found.bytes == 4 * (32 * 512 + 2 * 32 * 32)
    assert next(iter(found.by_line())) == ("m.py:2",)


def test_live_intermediates_fit_in_the_arena_of_the_runtime() -> None:
    rng = np.random.default_rng(SEED)
    compiled = stack.compile(chain([16 * int(n) for n in rng.integers(30, 60, 4)]))
    found = compiled.run.memory()
    (executable,) = compiled.graphs[-1].executables.values()
    results = sum(np.prod([int(s) for s in r.shape]) * 4 for r in compiled.func.results)
    assert found.arena <= executable.peak_bytes < found.arena + 64
    assert found.arena / 2 < found.bytes <= found.arena + results
    assert all(v.lines[0].startswith("m.py:") for v in found.values)


def test_views_and_updates_need_no_memory_of_their_own() -> None:
    func = parse(
        """func @f(%x: f32[8, 64]) -> (f32[512], f32[64, 8]) at tensor {
  %y = exp(%x) : f32[8, 64]
  %a = reshape(%y) : f32[512]
  %b = reshape(%y) : f32[64, 8]
  return %a, %b
}"""
    )
    found = peak_of(func, {})
    assert [(v.name, v.bytes) for v in found.values] == [("y", 2048)]


def test_a_loop_counts_what_its_body_needs() -> None:
    jax = pytest.importorskip("jax")

    def steps(x: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            return jax.numpy.tanh(carry @ jax.numpy.ones((8, 4096))) @ jax.numpy.ones((4096, 8)), ()

        return jax.lax.scan(step, x, None, length=3)[0] @ x

    found = stack.jit(steps)
    x = jax.numpy.ones((8, 8))
    found(x)
    peak = found.run.memory()
    assert any(v.type == "f32[8, 4096]" for v in peak.values)
    assert peak.bytes >= 4 * 8 * 4096
    assert any("test_memory.py" in line for v in peak.values for line in v.lines)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, run = tmp_path / "f.stack", tmp_path / "r"
    file.write_text(str(chain([64, 256, 16])))
    assert main(["dump", str(file), "-o", str(run), "--memory"]) == 0
    dumped = capsys.readouterr().out
    assert main(["show", str(run), "--memory"]) == 0
    shown = capsys.readouterr().out
    assert shown.strip() in dumped
    assert re.search(r"m.py:2 +l.1 +32.8 kB +\d+ % +%y1 f32\[32, 256\]", shown)
    assert main(["dump", str(file), "--backend", "triton", "--target", "sm_90", "--memory"]) == 0
    assert "%y1 f32[32, 256]" in capsys.readouterr().out


def test_memory_of_another_compiler_is_refused() -> None:
    pytest.importorskip("torch")
    compiled = stack.compile(chain([64, 16]), backend="eager")
    with pytest.raises(UsageError, match="planned elsewhere"):
        compiled.run.memory()
