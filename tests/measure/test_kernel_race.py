"""Kernels written by hand race against ours: the honest ones are timed, cheats are caught."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stack.cli import main
from stack.explore.saved_run import SavedRun, load_run
from stack.imports import function_of
from stack.ir import parse
from stack.measure.hand_kernel import Hand, HandError, framework_of
from stack.measure.kernel_race import race_kernel

CHEATS = Path(__file__).with_name("cheats.py")
# each with a word of what the race says
CAUGHT = {
    "computes_once": "differs",
    "by_address": "differs",
    "by_identity": "differs",
    "by_shape": "differs",
    "first_of_two_seeds": "differs",
    "after_some_calls": "on inputs that no call had before",
    "writes_its_argument": "writes to its argument 0",
    "works_in_place": "writes to its argument 0",
    "one_buffer": "changes result 0 of an earlier call",
    "skips_the_last_row": "differs",
    "skips_the_last_column": "differs",
    "adds_a_little": "differs",
    "in_half_precision": "differs",
    "by_tanh": "differs",
    "of_positive_numbers": "differs",
    "without_nan": "differs by inf",
    "without_infinities": "differs by inf",
    "without_large_numbers": "differs",
    "not_computed": "returns as result 0 Lazy, which is no array of numpy",
    "not_finished": "differs",
    "in_double_precision": "wrong type: expected float32 values, got float64",
    "in_another_order": "not dense",
    "of_another_shape": "shape [240], not [20, 12]",
    "two_results": "returns 2 results, not 1",
    "fails": "fails: ValueError",
}
TEXT = """func @f(%x: f32[20, 12], %w: f32[12]) -> (f32[20, 12]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[20, 12] from "m.py:1"
  %y = mul(%x, %wide) : f32[20, 12] from "m.py:1"
  %s = mul(%y, 0.70710678:f32) : f32[20, 12] from "m.py:2"
  %e = erf(%s) : f32[20, 12] from "m.py:2"
  %p = add(%e, 1.0:f32) : f32[20, 12] from "m.py:2"
  %h = mul(%y, 0.5:f32) : f32[20, 12] from "m.py:2"
  %z = mul(%h, %p) : f32[20, 12] from "m.py:2"
  return %z
}
"""
OTHERS = """
import torch

def by_torch(x, w):
    y = x * w  # as a formula: what torch's own function does with infinities depends on the CPU
    return y * 0.5 * (torch.erf(y * 0.70710678) + 1.0)

def view(x, w):
    return (x * w).T.contiguous().T

def argument(x, w):
    return x.detach()
"""
BY_JAX = """
import jax

@jax.jit
def by_jax(x, w):
    return jax.nn.gelu(x * w, approximate=False)
"""
ANNOTATED = """
import jax
import numpy as np
import torch

def of_jax(x: jax.Array): ...
def of_torch(x: "torch.Tensor"): ...
def of_numpy(x: np.ndarray): ...
def of_nobody(x): ...
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    folder = tmp_path_factory.mktemp("race")
    (folder / "f.stack").write_text(TEXT)
    assert main(["dump", str(folder / "f.stack"), "-o", str(folder / "r")]) == 0
    return load_run(str(folder / "r"))


def test_an_honest_kernel_is_timed(saved: SavedRun) -> None:
    found = race_kernel(saved, str(saved.kernels[0]["name"]), f"{CHEATS}:right", "mlir")
    assert not found.problem
    assert found.ours > 0 and found.hand > 0
    assert {"given", "large", "tiny", "rows", "denormal", "infinities", "nan"} <= set(found.kinds)


@pytest.mark.parametrize("name", CAUGHT)
def test_a_cheat_is_caught(name: str, saved: SavedRun) -> None:
    found = race_kernel(saved, str(saved.kernels[0]["name"]), f"{CHEATS}:{name}", "mlir")
    assert CAUGHT[name] in found.problem, found.problem
    assert not found.hand


def test_a_kernel_gets_arrays_of_its_framework(saved: SavedRun, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "torch_kernels.py").write_text(OTHERS)
    kernel = str(saved.kernels[0]["name"])
    torch_file = tmp_path / "torch_kernels.py"
    assert not race_kernel(saved, kernel, f"{torch_file}:by_torch", "mlir").problem
    assert "not dense" in race_kernel(saved, kernel, f"{torch_file}:view", "mlir").problem
    assert (
        "memory of an argument"
        in race_kernel(saved, kernel, f"{torch_file}:argument", "mlir").problem
    )


def test_a_kernel_of_jax_is_waited_for(saved: SavedRun, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "jax_kernels.py").write_text(BY_JAX)
    found = race_kernel(
        saved, str(saved.kernels[0]["name"]), f"{tmp_path / 'jax_kernels.py'}:by_jax", "mlir"
    )
    assert not found.problem


def test_annotations_name_the_framework(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    path = tmp_path / "annotated_kernels.py"
    path.write_text(ANNOTATED)
    for name in ("jax", "torch", "numpy"):
        assert framework_of(function_of(f"{path}:of_{name}"), "cpu") == name
    assert framework_of(function_of(f"{path}:of_nobody"), "cpu") == "numpy"
    assert framework_of(function_of(f"{path}:of_nobody"), "cuda") == "torch"


def test_a_result_in_memory_of_an_argument_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "copies.py"
    path.write_text("def copies(x):\n    return x[:]\n")
    func = parse("func @f(%x: f32[4]) -> (f32[4]) at tensor {\n  return %x\n}\n")
    with pytest.raises(HandError, match="memory of an argument"):
        Hand(f"{path}:copies", func, "cpu")([np.ones(4, np.float32)])


def test_the_command_says_what_is_wrong(
    saved: SavedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = saved.kernels[0]["name"]
    argv = ["run", str(saved.folder), "--kernel", f"{kernel}={CHEATS}:computes_once"]
    assert main(argv) == 1
    said = capsys.readouterr()
    assert "computes_once is wrong: result 0 differs" in said.err
    assert "us of" not in said.out
