"""A third party's operator: by entry point, by file, kept, decomposed, saved and run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from installed import PLUGINS, installed_package

import stack
from stack.errors import StackError
from stack.hosted import find, registry
from stack.hosted.native import CFunction

INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n",
    "entry_points.txt": "[stack.ops]\nacme = acme\n",
}
PROGRAM = """
import torch
from acme import clamp

def f(x):
    return clamp(x + 1, top=2.0) * 3
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package as pip would have installed it."""
    pytest.importorskip("torch")
    with installed_package(INFO, tmp_path, monkeypatch):
        find("acme.clamp")
        yield sys.modules["acme"]


def program(acme: ModuleType) -> Any:
    return lambda x: acme.clamp(x + 1, top=2.0) * 3


def test_a_plugin_is_less_than_60_lines() -> None:
    assert len((PLUGINS / "acme.py").read_text().splitlines()) < 60


def test_it_is_found_by_its_entry_point(acme: ModuleType) -> None:
    assert find("acme.clamp") is acme.clamp
    assert "acme.clamp" in registry.declared()


@pytest.mark.parametrize(("dtype", "kernel"), [("float32", "c"), ("float64", "python")])
def test_a_kernel_that_is_kept_is_called(
    acme: ModuleType, dtype: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    x = torch.linspace(-3, 3, 12, dtype=getattr(torch, dtype)).reshape(3, 4)
    expected = torch.clamp(x + 1, 0, 2) * 3
    compiled = stack.compile(program(acme), x, strict=True, hosted="hand")
    torch.testing.assert_close(compiled(x), expected)
    kinds = {k.name: k.kind for k in compiled.run.kernels}
    assert kinds[f"acme.clamp.{kernel}"] == "hand"
    decomposed = stack.compile(program(acme), x, strict=True, hosted="generated")
    torch.testing.assert_close(decomposed(x), expected)
    assert {k.kind for k in decomposed.run.kernels} == {"generated"}
    for run in (compiled.run, decomposed.run):
        assert (run.coverage["hosted"], run.coverage["native"]) == (1, 2)


def test_jax_calls_it(acme: ModuleType) -> None:
    jax = pytest.importorskip("jax")
    x = np.linspace(-3, 3, 12, dtype=np.float32)
    found = jax.jit(program(acme))(jax.numpy.asarray(x))
    np.testing.assert_allclose(found, np.clip(x + 1, 0, 2) * 3)


@pytest.mark.parametrize(("dtype", "is_called"), [("float32", True), ("float16", False)])
def test_jax_calls_it_on_a_gpu(acme: ModuleType, dtype: str, is_called: bool) -> None:
    """With code for the element type; another type is compiled without the kernel."""
    jax = pytest.importorskip("jax")
    traced = jax.jit(program(acme)).trace(jax.numpy.ones((3, 4), dtype))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert ("xla_buffer_python_gpu_callback" in text) == is_called


@pytest.mark.gpu
def test_values_of_a_call_by_jax_on_a_gpu(acme: ModuleType) -> None:
    jax = pytest.importorskip("jax")
    x = jax.device_put(np.linspace(-3, 3, 1 << 20, dtype=np.float32), jax.devices("cuda")[0])
    run = jax.jit(program(acme))
    for _ in range(3):
        np.testing.assert_allclose(run(x), np.clip(x + 1, 0, 2) * 3, rtol=1e-6)


def command(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`stackc`, in a process where nothing is installed but the file."""
    path = os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "stack", *argv],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
    )


def test_a_file_on_the_command_line(tmp_path: Path) -> None:
    """Help, a compiled program, its record, the reason, and the saved run again."""
    pytest.importorskip("torch")
    plugin = ["--plugin", str(PLUGINS / "acme.py")]
    done = command("ops", "acme.clamp", *plugin)
    assert done.returncode == 0, done.stderr
    assert "top: float = 6.0" in done.stdout and "cpu c (hand; f32)" in done.stdout
    (tmp_path / "model.py").write_text(PROGRAM)
    folder = tmp_path / "run"
    target = f"{tmp_path}/model.py:f"
    whole = "hosted{device=cpu, prefer=hand},canonicalize,fuse"
    arguments = ("-i", "f32[8,16]", "--passes", whole, "-o", str(folder))
    done = command("dump", target, *arguments, *plugin)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["coverage"]["hosted"] == 1
    assert "hand" in {k["kind"] for k in manifest["kernels"]}
    for known in (plugin, []):  # a run explains itself without the file of its operators
        done = command("explain", str(folder), "model.py:6", *known)
        assert "kept for hand kernel 'c'" in done.stdout
        assert "no operator" not in done.stdout
    again = command("dump", str(folder), "--passes", whole, "-o", str(tmp_path / "again"), *plugin)
    assert again.returncode == 0, again.stderr
    lost = command("dump", str(folder), "--passes", whole, "-o", str(tmp_path / "lost"))
    told = json.loads((tmp_path / "lost" / "manifest.json").read_text())["stages"]
    assert lost.returncode == 0, lost.stderr
    assert any("decomposed: no operator 'acme.clamp'" in str(s.get("notes")) for s in told)


def test_what_a_compiler_refuses_is_told() -> None:
    with pytest.raises(StackError, match="refused a kernel"):
        CFunction("void f( {", "f")()


def test_cuda_compiles_without_a_gpu(acme: ModuleType) -> None:
    pytest.importorskip("cuda.core")
    assert acme.CUDA.cubin("sm_90")[:4] == b"\x7fELF"


def test_two_declarations_of_one_name_are_refused(acme: ModuleType) -> None:
    with pytest.raises(StackError, match="declared already"):
        stack.op("acme.clamp", rule="a -> a")(lambda np, x: x)


def test_it_may_be_declared_before_the_framework_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that meets such an operator for the first time would end there."""
    import torch

    monkeypatch.setattr(registry, "_DECLARED", dict(registry._DECLARED))
    with monkeypatch.context() as before:
        before.setattr(registry.plugins, "names", lambda group: [])

        @registry.op("early.half", rule="... -> ...")
        def half(np: Any, x: Any) -> Any:
            return x * 0.5

    assert not half.callables
    x = torch.linspace(-3, 3, 12)
    compiled = stack.compile(lambda x: half(x + 1) * 3, x, strict=True)
    torch.testing.assert_close(compiled(x), (x + 1) * 1.5)
    assert compiled.run.coverage["hosted"] == 1
