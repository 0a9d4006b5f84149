"""The phases of a compilation and their times."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stack
import stack.phases
from stack.explore.dump import describe
from stack.ir.parser import parse
from stack.phases import phase, phases_now

TEXT = """
func @net(%x: f32[8, 64]) -> (f32[8, 64]) at tensor {
  %y = exp(%x) : f32[8, 64]
  return %y
}
"""
COMPILERS = {"print", "MLIR", "LLVM", "codegen"}


def phases_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    monkeypatch.setenv("STACK_CACHE_DIR", str(folder))
    compiled = stack.compile(parse(TEXT), np.zeros((8, 64), np.float32), backend="mlir")
    return {p["phase"]: p["ms"] for p in compiled.run.manifest()["phases"]}


def test_time_is_of_the_innermost_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings are 0, 1, 2, ...: at each beginning and end of a phase."""
    ticks = itertools.count()
    monkeypatch.setattr(stack.phases.time, "perf_counter", lambda: float(next(ticks)))
    with phase("outer"):
        with phase("inner"), phase("innermost"):
            pass
        with phase("inner"):
            pass
        found = phases_now()
    assert dict(found) == {"outer": 3.0, "inner": 3.0, "innermost": 1.0}
    assert not phases_now()


def test_a_phase_that_fails_ends() -> None:
    with pytest.raises(ValueError, match="why"), phase("outer"):
        raise ValueError("why")
    assert not phases_now()


def test_a_run_tells_its_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = phases_of(tmp_path, monkeypatch)
    assert found.keys() >= {"capture", "verify", "pass fuse", "pass tile", "load", *COMPILERS}
    assert min(found.values()) >= 0


def test_what_is_in_the_cache_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases_of(tmp_path, monkeypatch)
    again = phases_of(tmp_path, monkeypatch)
    assert COMPILERS.intersection(again) == {"print"}
    assert "load" in again


def test_the_tables_of_a_run_have_one_of_phases() -> None:
    compiled = stack.compile(parse(TEXT), np.zeros((8, 64), np.float32), backend="mlir")
    manifest: dict[str, Any] = compiled.run.manifest()
    manifest["phases"] = [{"phase": "MLIR", "ms": 30.0}, {"phase": "LLVM", "ms": 90.0}]
    lines = describe(manifest).split("\n\n")[-1].splitlines()
    assert [line.split() for line in (lines[0], *lines[-2:])] == [
        ["phase", "ms", "share"],
        ["LLVM", "90.00", "75", "%"],
        ["MLIR", "30.00", "25", "%"],
    ]
