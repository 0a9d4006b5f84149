"""The command line and GPUs that are not here: dumps work, runs say what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack.cli import main

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

NET = """import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh())

def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v

def program():
    return attention, tuple(torch.randn(2, 64, 16) for _ in range(3))
"""
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")


@pytest.fixture
def net(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(NET)
    return str(path)


@pytest.mark.every(2)
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_training_step_needs_no_gpu(
    backend: str, net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["dump", f"{net}:net", "-i", "f32[2,8]", "--train", "--backend", backend, "--json"]
    code = main([*argv, "--target", "sm_80", "-o", str(tmp_path / "t")])
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert code == 0
    assert list(runs) == ["joint", "forward", "backward"]
    for run in (runs["forward"], runs["backward"]):
        assert run["backend"] == backend
        assert run["coverage"]["fallback"] == 0
        assert {k["kind"] for k in run["kernels"]} == {"generated"}
    assert "sm_80" in next((tmp_path / "t" / "backward").glob("*-ptx.ptx")).read_text()


def test_a_backend_takes_options(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["dump", f"{net}:net", "-i", "f32[2,8]", "--to", "rounded", "--backend"]
    assert main([*argv, "triton{excess_precision=false}"]) == 0
    assert "rounding" in capsys.readouterr().out
    assert main([*argv, "triton"]) == 2
    assert "no stage 'rounded'" in capsys.readouterr().err
    assert main([*argv, "triton{excess=false}"]) == 2
    assert "'excess'" in capsys.readouterr().err


def test_a_derivation_is_shown_saved_and_explained(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "r"
    code = main(["dump", f"{net}:program", "--backend", "triton", "-o", str(folder)])
    shown = capsys.readouterr().out
    assert code == 0
    step = "A = exp(r - r') with r = s0"
    assert step in shown
    assert step in (folder / "notes" / "streamed.txt").read_text()
    stages = json.loads((folder / "manifest.json").read_text())["stages"]
    assert any(step in note for s in stages if s["name"] == "streamed" for note in s["notes"])
    assert main(["explain", str(folder), "softmax"]) == 0
    assert step in capsys.readouterr().out
    assert main(["explain", str(folder), "softmax", "--stage", "tiled"]) == 0
    assert step not in capsys.readouterr().out


@no_gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_running_needs_a_gpu(backend: str, net: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["dump", f"{net}:net", "-i", "f32[2,8]", "--backend", backend]
    assert main([*argv, "--profile"]) == 5
    assert "stackc dump --backend" in capsys.readouterr().err
