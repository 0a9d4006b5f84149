"""The manifest of a run: options of the compilation, flags of the framework, the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stack
from stack.cli import main
from stack.rewrite.pipeline import Pipeline
from stack.run.flags import VARIABLES, as_json

TEXT = "func @f(%x: f32[8]) -> (f32[8]) at tensor {\n  %y = exp(%x) : f32[8]\n  return %y\n}\n"


def test_options_of_a_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    passes = Pipeline("canonicalize,fuse{max_inputs=4}")
    compiled = stack.compile(stack.parse(TEXT), passes=passes, excess_precision=False)
    manifest = json.loads((compiled.run.save(tmp_path / "r") / "manifest.json").read_text())
    assert manifest["options"] == {
        "passes": passes.text,
        "strict": False,
        "excess_precision": False,
    }
    assert manifest["environment"] == {"XLA_FLAGS": "--xla_dump_to=x"}
    assert manifest["flags"] == {}


def test_options_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "f.stack").write_text(TEXT)
    argv = ["dump", str(tmp_path / "f.stack"), "-o", str(tmp_path / "r"), "--strict"]
    assert main([*argv, "--backend", "triton{excess_precision=false}", "--target", "sm_90"]) == 0
    options = json.loads((tmp_path / "r" / "manifest.json").read_text())["options"]
    expected = {"passes": "default", "strict": True, "excess_precision": False, "target": "sm_90"}
    assert options == expected


def test_flags_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(4)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.no_grad():
            flags = stack.compile(torch.tanh, x).run.manifest()["flags"]
    finally:
        torch.set_float32_matmul_precision(before)
    assert flags["float32_matmul_precision"] == "medium"
    assert flags["grad_enabled"] is False
    assert flags["num_threads"] == torch.get_num_threads()


def test_flags_of_jax() -> None:
    jax = pytest.importorskip("jax")
    compiled = stack.jit(lambda x: jax.numpy.tanh(x))
    with jax.default_matmul_precision("float32"), jax.enable_x64(True):
        compiled(jax.numpy.ones(4))
    flags = compiled.run.manifest()["flags"]
    assert flags["jax_default_matmul_precision"] == "float32"
    assert flags["jax_enable_x64"] is True


def test_every_option_has_a_form_in_json() -> None:
    held: dict[str, Any] = {"a": (1, 2.5), "b": {"y": Path("x")}, "c": [None, True]}
    assert json.loads(json.dumps(as_json(held))) == {
        "a": [1, 2.5],
        "b": {"y": "x"},
        "c": [None, True],
    }
