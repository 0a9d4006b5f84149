"""Smoke tests of the torch frontend, run on every torch release that is promised."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stack
from stack.cli import main

torch = pytest.importorskip("torch")

MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

def block():
    torch.manual_seed(0)
    return Block(), (torch.randn(4, 16),)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("smoke") / "smoke_model.py"
    path.write_text(MODEL)
    return str(path)


@pytest.fixture(scope="module")
def block(file: str) -> tuple[Any, Any]:
    names: dict[str, Any] = {}
    exec(compile(MODEL, file, "exec"), names)
    module, (x,) = names["block"]()
    return module, x


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("entry", ["stack.compile", "torch.compile"])
def test_first_and_later_calls(entry: str, block: tuple[Any, Any]) -> None:
    module, x = block
    torch._dynamo.reset()
    compiled = (
        stack.compile(module, x)
        if entry == "stack.compile"
        else torch.compile(module, backend="stack")
    )
    for turn in range(50):
        given = x + turn
        close(compiled(given), module(given))
    with torch.no_grad():
        for _ in range(3):
            close(compiled(x), module(x))
    close(compiled(x[:2]), module(x[:2]))


@pytest.mark.parametrize("entry", ["stack.compile", "torch.compile"])
def test_three_training_steps(entry: str, block: tuple[Any, Any]) -> None:
    torch._dynamo.reset()
    theirs, x = copy.deepcopy(block[0]), block[1]
    ours = copy.deepcopy(theirs)
    compiled = (
        stack.compile(ours, x) if entry == "stack.compile" else torch.compile(ours, backend="stack")
    )
    for module, call in ((theirs, theirs), (ours, compiled)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            call(x + step).square().mean().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(mine, other)


def test_dump_and_compare(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{file}:block"
    assert main(["dump", target, "-o", str(tmp_path / "run")]) == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [stage["name"] for stage in manifest["stages"]][:2] == ["captured", "imported"]
    capsys.readouterr()
    assert main(["compare", target, "--with", "eager", "--rounds", "2", "--json"]) == 0
    assert all(row["ok"] for row in json.loads(capsys.readouterr().out)["rows"])


def test_a_hosted_operator_and_its_gradient() -> None:
    from stack.ops import attention

    q, k, v = (torch.randn(1, 2, 8, 4, requires_grad=True) for _ in range(3))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = torch.autograd.grad(theirs.sum(), (q, k, v))
    ours = stack.compile(lambda *qkv: attention.attention(*qkv, causal=True), q, k, v)(q, k, v)
    close(ours, theirs)
    for mine, other in zip(torch.autograd.grad(ours.sum(), (q, k, v)), expected, strict=True):
        close(mine, other)
