"""`stack.first_nan` and `stackc run --first-nan`: op, place and operands of the first nan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stack
from stack.cli import main
from stack.explore.in_memory_run import held
from stack.faults.first_nan import kernels_of
from stack.faults.nonfinite import operands, reason, watched
from stack.ir.parser import parse

torch = pytest.importorskip("torch")
SEED = int(np.random.SeedSequence().generate_state(1)[0])

NET = '''
import torch

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = torch.nn.Linear(4, 4)

    def forward(self, x, mask):
        scores = self.wq(x) @ x.T
        scores = torch.where(mask, scores, float("-inf"))
        return torch.softmax(scores, -1)

def attention():
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    return Attention(), (torch.randn(6, 4), mask)

def finite(x):
    return torch.tanh(x)
'''  # fmt: skip


def place(shape: tuple[int, ...]) -> tuple[int, ...]:
    rng = np.random.default_rng(SEED)
    return tuple(int(rng.integers(n)) for n in shape)


@pytest.mark.parametrize(
    ("text", "inputs", "why"),
    [
        ("log(%x) : f32[5, 7]", -2.5, "log(-2.5) has no value"),
        ("sqrt(%x) : f32[5, 7]", -4.0, "sqrt(-4) has no value"),
        ("log(%x) : f32[5, 7]", 0.0, "a division by zero, or a pole of log"),
        ("div(1:f32, %x) : f32[5, 7]", 0.0, "a division by zero, or a pole of div"),
        ("exp(%x) : f32[5, 7]", 100.0, "overflow: 2.69e+43 is more than the largest f32, 3.4e+38"),
        ("cast(%x) : f16[5, 7]", 7e4, "overflow: 7e+04 is more than the largest"),
        ("mul(%x, %x) : f32[5, 7]", 1e20, "overflow: 1e+40 is more than the largest f32"),
    ],
)
def test_one_element_of_one_op(text: str, inputs: float, why: str) -> None:
    broadcast = "%one = broadcast(1:f32) {axes=[]} : f32[5, 7]\n" if "1:f32" in text else ""
    text = text.replace("1:f32", "%one")
    result = text.rpartition(": ")[2]
    func = parse(
        f"func @f(%x: f32[5, 7]) -> ({result}) at tensor {{\n{broadcast}%y = {text}\nreturn %y\n}}"
    )
    x, at = np.ones((5, 7), np.float32), place((5, 7))
    x[at] = inputs
    seen = watched(func, [x])
    (source,) = seen.nans.sources or seen.infs.sources
    assert source.index == at
    assert reason(source).startswith(why)
    assert [float(o.values.item()) for o in operands(source)][-1] == np.float32(inputs)


def test_an_op_on_infinities_names_where_they_come_from() -> None:
    def late(x: Any) -> Any:
        big = torch.exp(x)
        return torch.tanh(x) + (big - big).sum()

    x = torch.zeros(9)
    at = place((9,))
    x[at] = 90.0
    found = stack.first_nan(late, x)
    assert (found.kind, found.first.op, found.first.index) == ("nan", "sub", at)
    assert found.first.why == "sub(inf, inf) has no value"
    (cause,) = found.causes
    assert (cause.op, cause.index, cause.value) == ("exp", at, "inf")
    assert "overflow: 1.22e+39" in cause.why
    assert found.results == ((9, 0),)


def test_a_matmul_names_the_row_and_column_that_it_reads() -> None:
    def product(x: Any, y: Any) -> Any:
        return x @ y

    x, y = torch.ones(3, 5), torch.ones(5, 4)
    x[1, 2], y[3, 2] = float("inf"), float("-inf")
    found = stack.first_nan(product, x, y).first
    assert (found.op, found.index, found.kernels) == ("dot", (1, 2), ("dot",))
    assert [o.index for o in found.operands] == ["[1, 0:5]", "[0:5, 2]"]
    assert "1 inf" in found.operands[0].value
    assert "inf - inf" in found.why


def test_partial_sums_that_overflow() -> None:
    def product(x: Any, y: Any) -> Any:
        return (x @ y) - (x @ y)

    found = stack.first_nan(product, torch.full((2, 2), 3e38), torch.ones(2, 2))
    assert found.first.op == "sub"
    assert [c.op for c in found.causes] == ["dot"]
    assert found.causes[0].why.startswith("overflow: 6e+38 is more than")


def test_a_nan_of_an_argument_or_a_weight() -> None:
    layer = torch.nn.Linear(4, 4)
    x = torch.zeros(2, 4)
    assert stack.first_nan(layer, x).first is None
    x[1, 3] = float("nan")
    found = stack.first_nan(layer, x)
    assert (found.first.op, found.first.index) == ("param", (1, 3))
    assert "already has it" in str(found)
    with torch.no_grad():
        layer.bias[2] = float("nan")
    found = stack.first_nan(layer, torch.zeros(2, 4))
    assert (found.first.node, found.first.index) == ("bias", (2,))


def test_a_nan_that_no_result_has_comes_last() -> None:
    def masked(x: Any) -> Any:
        return torch.where(x > 0, torch.log(x), 0.0)

    def both(x: Any) -> Any:
        return torch.where(x > 0, torch.log(x), 0.0), torch.sqrt(x)

    x = torch.tensor([1.0, -1.0])
    found = stack.first_nan(masked, x)
    assert found.first.op == "log"
    assert not found.is_seen
    assert "no result has nan" in str(found)
    found = stack.first_nan(both, x)
    assert found.first.op == "sqrt"
    assert found.is_seen
    assert [o.op for o in found.others] == ["log"]


def test_infinities_are_found_without_a_nan_or_when_asked_for() -> None:
    def steps(x: Any) -> Any:
        return torch.exp(x * 100), torch.log(-x)

    x = torch.ones(3)
    assert stack.first_nan(steps, x).first.op == "log"
    found = stack.first_nan(steps, x, inf=True)
    assert (found.kind, found.first.op) == ("inf", "exp")


def test_a_jax_scan() -> None:
    jax = pytest.importorskip("jax")

    def decay(x):
        def step(carry, row):
            carry = jax.numpy.sqrt(carry - row)
            return carry, carry

        return jax.lax.scan(step, x[0], x)

    found = stack.first_nan(decay, jax.numpy.arange(4.0))
    assert (found.kind, found.first.op) == ("nan", "sqrt")
    assert "sqrt(-1) has no value" in found.first.why
    assert found.first.lines[0].startswith("test_first_nan.py:")


def test_16_bit_floats() -> None:
    def narrow(x: Any) -> Any:
        return x * x

    found = stack.first_nan(narrow, torch.full((3,), 300.0, dtype=torch.float16))
    assert "9e+04 is more than the largest f16, 6.55e+04" in found.first.why
    assert stack.first_nan(narrow, torch.full((3,), 300.0, dtype=torch.bfloat16)).first is None


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net_nan.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_prints_place_operands_and_cause(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "net_nan.py:attention", "--first-nan"]) == 1
    printed = capsys.readouterr().out
    assert "the first nan: sub %sub at net_nan.py:12, kernel " in printed
    assert "%sub[2, 0] = nan (6 elements): sub(-inf, -inf) has no value" in printed
    assert "an infinity among them comes from the constant -inf at net_nan.py:11" in printed
    assert "result 0: 6 nan, 0 inf" in printed
    assert main(["run", "net_nan.py:finite", "-i", "f32[4]", "--first-nan"]) == 0
    assert "no value is nan" in capsys.readouterr().out


def test_a_stage_of_a_run_and_json(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (net / "f.stack").write_text(
        "func @f(%x: f32[8]) -> (f32[8]) at tensor {\n"
        '  %y = sqrt(%x) : f32[8] from "m.py:3 head.norm"\n  return %y\n}\n'
    )
    assert main(["dump", "f.stack", "-o", "r"]) == 0
    capsys.readouterr()
    for file in ("f.stack", "r", "r:fused"):
        assert main(["run", file, "--first-nan", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert found["schema"] == "stack.first-nan/1"
        first = found["first"]
        assert (first["op"], first["lines"], first["modules"]) == (
            "sqrt",
            ["m.py:3"],
            ["head.norm"],
        )
        assert first["kernels"] == ["sqrt"]


@pytest.mark.parametrize("more", [["--against", "f.stack"], ["--save", "x.npz"]])
def test_other_tasks_of_the_command_are_refused(
    net: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "net_nan.py:attention", "--first-nan", *more]) == 2
    assert "--first-nan takes only" in capsys.readouterr().err
    assert main(["run", "net_nan.py:finite", "-i", "f32[4]"]) == 2
    assert "add --first-nan" in capsys.readouterr().err


def test_each_kernel_is_found_by_the_values_that_it_computes() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    compiled = stack.compile(layer, torch.randn(4, 8))
    run = held(compiled.run)
    imported = compiled.run.func("imported")
    for kernel in compiled.run.kernels:
        assert kernel.name in kernels_of(run, kernel.stage_node)
    for node, name in imported.body.names.items():
        if node.op in ("exp", "div", "dot"):
            (found,) = kernels_of(run, name)
            assert node.op in next(k.ops for k in compiled.run.kernels if k.name == found)
