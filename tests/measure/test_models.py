"""The suite of models: its programs, how it judges, its processes, scripts for failing peers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stack.cli import main  # noqa: E402
from stack.demos import suite  # noqa: E402
from stack.measure import model_bench, model_worker  # noqa: E402
from stack.measure.child import ProcessLost, Worker  # noqa: E402
from stack.measure.model_bench import model_bench as run_suite  # noqa: E402
from stack.measure.model_check import errors_of, judge, worst  # noqa: E402
from stack.measure.model_systems import _inductor_counts, ways  # noqa: E402
from stack.measure.models import model_cases  # noqa: E402
from stack.measure.reproduce import Failure, write_reproducers  # noqa: E402
from stack.measure.roofline import Ceilings  # noqa: E402
from stack.measure.suite import Case  # noqa: E402

PROGRAM = """
import os, time
from dataclasses import dataclass
from typing import Any
import torch

@dataclass(frozen=True)
class Made:
    framework: str
    fn: Any
    args: Any
    train: bool = False

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        return torch.tanh(self.inner(x)).square().mean() if self.training else self.inner(x)

def net(train=False, wait=0, device="cpu"):
    time.sleep(wait)
    module = Net().train(train)
    return Made("torch", module, (torch.ones(4, 8),), train)
"""


CEILINGS = Ceilings({"f32": 1e15}, {1 << 20: 1e15}, 1, "made up")


# ---- programs


def test_the_suite_lists_every_program_once() -> None:
    cases = model_cases("cuda")
    assert len({(c.row, c.title) for c in cases}) == len(cases)
    assert sum(c.row == "M1" for c in cases) >= 30
    assert {c.kind for c in cases if c.row == "M3"} == {"cold"}
    assert {c.row for c in model_cases("cpu", train=True)} == {"M2"}
    assert all("max-autotune" not in c.peers for c in model_cases("cuda", quick=True))
    assert all("reduce-overhead" in c.peers for c in model_cases("cuda", quick=True))


def test_programs_of_torch_have_two_element_types_on_a_cpu() -> None:
    cases = [c for c in model_cases("cpu") if c.row == "M1"]
    kinds = {(c.case["family"] == "jax", c.case["dtype"]) for c in cases}
    assert kinds == {(False, "f32"), (False, "bf16"), (True, "f32")}
    assert not any(c.quick for c in cases if c.case["dtype"] == "bf16")
    gpu = {c.case["dtype"] for c in model_cases("cuda") if c.row == "M1"}
    assert gpu == {"bf16", "f32"}  # f32 are JAX's


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_program_is_in_the_element_type_it_is_asked_for(dtype: str) -> None:
    wanted = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    made = suite.program("mobilenet", dtype=dtype)
    assert {p.dtype for p in made.fn.parameters()} == {wanted}
    assert [a.dtype for a in made.args] == [wanted]
    with torch.no_grad():
        assert made.fn(*made.args).dtype == wanted


def test_an_element_type_that_a_program_is_not_written_for_is_refused() -> None:
    with pytest.raises(KeyError, match="rnn_scan on cpu is no program in bf16; it is in f32"):
        suite.program("rnn_scan", dtype="bf16")
    with pytest.raises(KeyError, match="gpt2 on cuda is no program in f32; it is in bf16"):
        suite.program("gpt2", device="cuda", dtype="f32")


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["mobilenet", "gru", "distilbert"])
def test_a_program_of_torch_has_all_gradients(name: str) -> None:
    made = suite.program(name, train=True)
    loss = made.fn(*made.args)
    assert loss.dim() == 0
    wanted = list(made.fn.parameters())
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    assert all(g is not None and bool(g.isfinite().all()) for g in gradients)
    again = made.fn(*made.args)
    assert torch.equal(loss, again)  # no dropout
    assert not suite.program(name).fn.training


@pytest.mark.parametrize("name", suite.FAMILIES["jax"])
def test_a_program_of_jax_has_gradients(name: str) -> None:
    jax = pytest.importorskip("jax")
    forward, train = suite.program(name), suite.program(name, train=True)
    shapes = jax.eval_shape(train.fn, *train.args)
    assert jax.tree.leaves(jax.eval_shape(forward.fn, *forward.args))
    assert jax.tree.map(lambda s: s.shape, shapes) == jax.tree.map(lambda a: a.shape, train.args[0])


# ---- judgement


def test_errors_are_judged_by_those_of_eager() -> None:
    exact = [torch.tensor([1.0, 2.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]
    eager = errors_of(exact, [torch.tensor([1.0, 2.0]), torch.tensor([1e-9, 0.0])])
    found = errors_of(exact, [torch.tensor([1.0, 2.1]), torch.tensor([0.0, 2e-9])])
    assert found[0] == pytest.approx(0.05)
    # a result that is zero but for rounding is as good as eager's
    assert judge(found[1:], eager[1:], ["float32"]) == ""
    assert "result 0 is off by 0.05" in judge(found, eager, ["float32", "float32"])
    assert judge(found, eager, ["bfloat16", "float32"]) == "" or found[0] > 0.02
    assert worst(found, eager) == pytest.approx(0.05)
    assert errors_of(exact, exact[:1]) == [math.inf]
    assert judge([math.inf], [0.0], ["float32"])


def test_every_system_of_inductor_compiles_by_its_own_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # one module, one process: Dynamo would answer the second from what it compiled for the first
    seen: list[dict[str, object]] = []

    def compile_fx(graph: Any, _: Any, config_patches: dict[str, object], **__: Any) -> Any:
        seen.append(config_patches)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    module = torch.nn.Linear(3, 5)
    made = suite.ModelProgram("torch", module, (torch.ones(2, 3),))
    peers = "inductor,inductor{freezing=true},inductor{mode=max-autotune-no-cudagraphs}"
    for way in ways(made, peers, "mlir", "cpu", lambda: pytest.fail("nothing is replayed"))[1:]:
        way.make().call()
    assert [s.get("freezing", False) for s in seen] == [False, True, False]
    assert [s.get("max_autotune", False) for s in seen] == [False, False, True]


def test_launches_are_counted_in_what_inductor_writes() -> None:
    code = """
def call(args):
    triton_poi_fused_0.run(buf0, 16)
    extern_kernels.mm(buf0, arg1, out=buf1)
    buf2 = torch.ops.aten.convolution.default(buf1)
    cpp_fused_add_1(buf2)

def benchmark(call):
    triton_poi_fused_0.run(buf0, 16)
"""
    counts = _inductor_counts([code, code])
    assert (counts.kernels, counts.library, counts.fallback) == (2, 2, 0)


# ---- processes


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "stack_test_net.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(model_bench, "measure_ceilings", lambda quick: CEILINGS)
    return "stack_test_net:net"


@pytest.mark.parametrize("train", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_program_is_compiled_checked_and_timed_in_its_process(net: str, train: bool) -> None:
    case = Case("M1", {"model": "net"}, net, {"train": train}, "torch", peers="eager")
    shown: list[str] = []
    found = run_suite([case], rounds=5, jobs=2, show=shown.append)
    assert not found.problems
    rows = {r["system"]: r for r in found.rows}
    assert list(rows) == ["stack-mlir", "eager"]
    for row in rows.values():
        assert row["ms"] > 0
        assert row["error"] < 1e-5
        assert row["compile_s"] > 0
    assert rows["stack-mlir"]["kernels"] > 0
    assert rows["stack-mlir"]["fallback"] == 0
    assert "net" in shown[-1]
    assert json.dumps(found.as_dict())


@pytest.mark.slow
def test_a_program_that_hangs_does_not_take_the_run_down(
    net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_bench, "PATIENCE", 30.0)  # enough for the other on a busy machine
    cases = [
        Case("M1", {"model": "slow"}, net, {"wait": 120}, "torch", peers="eager"),
        Case("M1", {"model": "net"}, net, {}, "torch"),
    ]
    found = run_suite(cases, rounds=5)
    slow, net_row = found.rows
    assert slow["ms"] is None
    assert net_row["ms"] > 0
    assert "no message for 30 seconds" in slow["note"]
    assert found.exit_code == 1


def test_a_process_that_says_nothing_is_ended() -> None:
    with pytest.raises(ProcessLost, match="no message for"):
        worker = Worker(lambda _: None, module="stack.measure.model_worker", patience=0.1)
        worker.tell({})


def test_a_process_that_takes_too_much_memory_is_ended() -> None:
    with pytest.raises(ProcessLost, match="took more than 0 GiB"):
        worker = Worker(lambda _: None, module="stack.measure.model_worker", memory=1 << 20)
        worker.tell({})


def test_a_system_that_kills_its_process_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    class Fake:
        device = "here"

        def __init__(self, *_: Any) -> None: ...

        def tell(self, request: dict[str, Any]) -> None:
            if request:
                asked.append(list(request["skip"]))

        def answer(self) -> dict[str, Any]:
            if "inductor" not in asked[-1]:
                raise ProcessLost("ended", {"at": "inductor", "kind": "peer", "is_ours": False})
            entry: dict[str, Any] = dict.fromkeys(
                ("compile_s", "peak_bytes", "kernels", "library", "fallback", "error")
            )
            entry.update(system="stack-mlir", kind="generated", is_ours=True, note="", problem="")
            entry.update(ms=1.0, spread=0.0, rounds_ms=[1.0])
            return {"done": {"entries": [entry], "usual": 0.0}}

        def close(self, patience: float) -> None: ...

    monkeypatch.setattr(model_bench, "Worker", Fake)
    monkeypatch.setattr(model_bench, "measure_ceilings", lambda quick: CEILINGS)
    found = run_suite([Case("M1", {"model": "net"}, "m:f", {})])
    assert asked == [[], ["inductor"]]
    rows = {r["system"]: r for r in found.rows}
    assert rows["inductor"]["note"] == "ended at inductor"
    assert rows["stack-mlir"]["ms"] == 1.0
    assert [f.system for f in found.failures] == ["inductor"]


def test_infinities_are_written_as_words() -> None:
    assert model_worker._finite({"a": [math.inf, 1.0]}) == {"a": ["inf", 1.0]}


# ---- scripts


def test_scripts_for_failing_peers_need_nothing_of_ours(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    spec = "stack.demos.suite:program"
    jax_case = Case("M1", {"model": "mlp_vmap"}, spec, {"name": "mlp_vmap"})
    rows = Case("C3", {"function": "rope"}, "stack.demos.cpu_rows:pointwise", {"name": "rope"})
    failures = [
        Failure(jax_case, "xla", "it broke"),
        Failure(rows, "inductor/native", "it broke"),
        Failure(rows, "inductor/ir", "our replay: no script"),
        Failure(rows, "stack-mlir", "ours: no script"),
        Failure(rows, "flex", "a rival: no script"),
    ]
    written = write_reproducers(failures, tmp_path, {"torch": "2"})
    assert [p.name for p in written] == ["M1-mlp_vmap-xla.py", "C3-rope-inductor-native.py"]
    for path in written:
        alone = (
            "import runpy, sys; sys.modules['stack'] = None; import torch;"
            f"torch.compile = lambda f, **_: f; runpy.run_path({str(path)!r})"
        )
        done = subprocess.run(
            [sys.executable, "-c", alone], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "result 0: largest difference" in done.stdout


def test_the_command_refuses_what_is_for_other_suites(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cpu", "--train"]) == 2
    assert "suite models" in capsys.readouterr().err
    assert main(["bench", "models", "--only", "model=nothing"]) == 2
