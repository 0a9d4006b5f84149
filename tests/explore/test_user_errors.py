"""What a program refuses by itself: its own error and line, in at most ten lines, no traceback."""

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
"""
SQUARE, TALL, WIDE = "--input=f32[8,8]", "--input=f32[4,8]", "--input=f64[8,8]"


@pytest.fixture
def torch_file(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    path = tmp_path / "user_net.py"
    path.write_text(TORCH)
    return path


def told(argv: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """What a command that fails says; frameworks write to the descriptors too."""
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
