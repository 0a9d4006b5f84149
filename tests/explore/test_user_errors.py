"""Errors of a user's program: its own error and line, in at most ten lines, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

import stack
from stack.cli import main

TORCH = """import torch


def product(x, y):
    z = x + 1
    return z @ y


def item(x):
    y = x * 2
    if y.sum().item() > 0:
        return y + 1
    return y


def drop():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)), (torch.ones(4, 8),)


def norm():
    return torch.nn.Sequential(torch.nn.BatchNorm1d(8)), (torch.ones(4, 8),)
"""
JAX = """import jax.numpy as jnp


def product(x, y):
    z = jnp.tanh(x)
    return z @ y


def item(x):
    return x if x.sum() > 0 else -x
"""
SQUARE, TALL, WIDE = "--input=f32[8,8]", "--input=f32[4,8]", "--input=f64[8,8]"


@pytest.fixture
def torch_file(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    path = tmp_path / "user_net.py"
    path.write_text(TORCH)
    return path


def told(argv: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The output of a command that fails; frameworks write to the descriptors too."""
    assert main(argv) in (1, 2)
    said = capfd.readouterr().err.strip()
    assert len(said.splitlines()) <= 10, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("more", [[], ["--to", "fused"]])
@pytest.mark.parametrize(("second", "word"), [(TALL, "shapes"), (WIDE, "dtype")])
def test_torch_shapes_and_dtypes(
    torch_file: Path, second: str, word: str, more: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    said = told(["dump", f"{torch_file}:product", SQUARE, second, *more], capfd)
    assert said.startswith("stackc: error: RuntimeError: ")
    assert word in said
    assert "(at user_net.py:6: `return z @ y`)" in said


@pytest.mark.parametrize("more", [[], ["--to", "fused"]])
def test_torch_item(torch_file: Path, more: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    said = told(["dump", f"{torch_file}:item", "--input=f32[8]", *more], capfd)
    assert "at user_net.py:11: `if y.sum().item() > 0:`" in said


def test_torch_breaks_show_the_line_and_nothing_else(
    torch_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{torch_file}:item", "--input=f32[8]", "--breaks"]) == 0
    shown = capfd.readouterr()
    assert shown.out.startswith("user_net.py:11: `if y.sum().item() > 0:`: ")
    assert shown.err == ""


def test_a_missing_and_a_superfluous_input(
    torch_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "add -i 'f32[2,16,64]'" in told(["dump", f"{torch_file}:product"], capfd)
    said = told(["dump", f"{torch_file}:item", SQUARE, SQUARE], capfd)
    assert "item() takes 1 positional argument but 2 were given" in said


@pytest.mark.parametrize(("name", "what"), [("drop", "aten.bernoulli"), ("norm", "running_mean")])
def test_a_module_in_training_mode_is_not_compared(
    torch_file: Path, name: str, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said = told(["compare", f"{torch_file}:{name}", "--with", "eager"], capfd)
    assert what in said
    assert ".eval()" in said


def test_modules_without_a_line_of_the_user_have_their_path_alone() -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).eval()
    kernels = stack.compile(net, torch.ones(4, 8)).run.kernels
    assert [k.source for k in kernels] == [("0",), ("1",)]


@pytest.mark.parametrize("more", [[], ["--to", "fused"]])
def test_jax_shapes(tmp_path: Path, more: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    path = tmp_path / "user_jax.py"
    path.write_text(JAX)
    said = told(["dump", f"{path}:product", SQUARE, TALL, *more], capfd)
    assert said.startswith("stackc: error: TypeError: dot_general requires")
    assert "(at user_jax.py:6: `return z @ y`)" in said


@pytest.mark.parametrize("more", [[], ["--to", "fused"]])
def test_jax_trace(tmp_path: Path, more: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """JAX cannot trace what eager runs: JAX's own words, the line, no traceback."""
    pytest.importorskip("jax")
    path = tmp_path / "user_jax.py"
    path.write_text(JAX)
    said = told(["dump", f"{path}:item", "--input=f32[8]", *more], capfd)
    assert said.startswith("stackc: error: TracerBoolConversionError: Attempted boolean")
    assert "cannot trace the program, which runs without the compiler" in said
    assert "(at user_jax.py:10: `return x if x.sum() > 0 else -x`)" in said


PASSES = """from stack import Pass


class Mine(Pass):
    name = "mine"

    def run(self, func, log):
        return func


number = 3
"""


def test_names_that_are_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Missing names of a run, a file, a pass in a file, and a file line without an op."""
    said = told(["show", str(tmp_path / "r1")], capfd)
    assert said == f"stackc: error: there is no file or saved run '{tmp_path / 'r1'}'"
    text = tmp_path / "f.stack"
    x = 'func @f(%x: f32[2]) -> (f32[2]) at tensor {\n  %y = exp(%x) : f32[2] from "m.py:15"\n'
    text.write_text(x + '  %z = exp(%y) : f32[2] from "m.py:9"\n  return %z\n}\n')
    own = tmp_path / "own.py"
    own.write_text(PASSES)
    assert main(["opt", str(text), f"--pass-pipeline={own}:Mine"]) == 0
    said = told(["opt", str(text), f"--pass-pipeline={own}:Mina"], capfd)
    assert f"{own} has no pass 'Mina'; did you mean 'Mine'? there are: Mine" in said
    said = told(["opt", str(text), f"--pass-pipeline={own}:number"], capfd)
    assert "number is not a pass" in said
    run = tmp_path / "run"
    assert main(["dump", str(text), "-o", str(run)]) == 0
    said = told(["where", str(run), "m.py:13"], capfd)
    assert "did you mean 'm.py:15'? its source lines: m.py:9, m.py:15" in said
