"""The GPU suite without a GPU: its programs on the CPU, its bookkeeping with a stand-in worker."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from stack.cli import main  # noqa: E402
from stack.demos import gpu_attention, gpu_convs, gpu_masks, gpu_rows, gpu_written  # noqa: E402
from stack.errors import StackError  # noqa: E402
from stack.measure import gpu_bench, gpu_timing, gpu_worker  # noqa: E402
from stack.measure.bench import describe  # noqa: E402
from stack.measure.gpu import gpu_cases  # noqa: E402
from stack.measure.gpu_program import GpuProgram, Rival  # noqa: E402
from stack.measure.gpu_systems import error_of, exact_results  # noqa: E402
from stack.measure.gpu_timing import Clock, interleave, set_count  # noqa: E402
from stack.measure.plots import plot_all  # noqa: E402
from stack.measure.roofline import Ceilings  # noqa: E402
from stack.measure.suite import Case, select  # noqa: E402
from stack.measure.timing import Timing  # noqa: E402

SMALL = {"batch": 2, "heads": 4, "seq": 23, "width": 16, "device": "cpu", "dtype": "float64"}
TINY = {"batch": 1, "seq": 8, "width": 128}
SINKS = {"sink_column", "sink_floor", "softmax_plus_one"}
FLEXIBLE = sorted({*gpu_attention.VARIANTS} - SINKS - {"differential", "sigmoid"})


# ---- cases


def test_cases_are_distinct_and_their_factories_take_the_options() -> None:
    cases = gpu_cases()
    assert len({(c.row, c.title) for c in cases}) == len(cases)
    rows = (1, 2, 4, 5, 6, 7, 11, 12, 13, 14, 20, 21, 22, 23, 24)
    assert {c.row for c in cases} == {f"G{i}" for i in rows}
    for case in cases:
        module, _, name = case.spec.partition(":")
        inspect.signature(getattr(importlib.import_module(module), name)).bind(**case.options)
    assert len(select(gpu_cases(quick=True), "G4", quick=True)) == 14


def test_without_a_gpu_the_suite_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["bench", "gpu", "--rows", "G6"]) == 5
    assert "NVIDIA GPU" in capsys.readouterr().err


# ---- the naive sources


def seen(variant: str, ids: np.ndarray | None, b: int, i: int, j: int, length: int) -> bool:
    """True if row i sees column j, from the definition of the variant."""
    if variant in ("full", "bias", "learned"):
        return True
    if variant == "window":
        return 0 <= i - j < min(gpu_attention.WINDOW, length // 2)
    same = ids is None or ids[b, i] == ids[b, j]
    return j <= i and bool(same)


def by_hand(variant: str, args: list[np.ndarray]) -> np.ndarray:
    """Attention in loops over rows, one score after another."""
    q, k, v = args[:3]
    second = None
    if variant == "differential":
        second, v = (args[2], args[3]), args[4]
    ids = args[3] if variant == "document" else None
    batch, heads, length, width = q.shape
    share = heads // k.shape[1]
    out = np.zeros_like(q)
    for b, h, i in np.ndindex(batch, heads, length):
        columns = [j for j in range(length) if seen(variant, ids, b, i, j, length)]
        g = h // share

        def weights(q: np.ndarray, k: np.ndarray, at: tuple = (b, h, i, g, tuple(columns))):
            b, h, i, g, columns = at
            scores = np.array([q[b, h, i] @ k[b, g, j] / math.sqrt(width) for j in columns])
            if variant == "alibi":
                scores += [args[3][h] * (j - i) for j in columns]
            if variant == "softcap":
                scores = np.tanh(scores / gpu_attention.CAP) * gpu_attention.CAP
            if variant == "bias":
                scores += [args[3][h, i, j] for j in columns]
            if variant == "learned":
                scores += [args[3][h, j - i + length - 1] for j in columns]
            if variant == "sigmoid":
                return 1 / (1 + np.exp(-(scores - math.log(length))))
            sink = {"sink_column": args[3:], "sink_floor": args[3:], "softmax_plus_one": [0.0]}
            sinks = [s[h] if np.ndim(s) else s for s in sink.get(variant, [])]
            e = np.exp(scores - max(*scores, *sinks, -math.inf))
            return e / (e.sum() + sum(np.exp(s - max(*scores, *sinks)) for s in sinks))

        p = weights(q, k)
        if second is not None:
            p = p - gpu_attention.MIX * weights(*second)
        out[b, h, i] = sum(w * v[b, g, j] for w, j in zip(p, columns, strict=True))
    return out


@pytest.mark.parametrize("variant", sorted(gpu_attention.VARIANTS))
def test_variants_are_what_their_names_say(variant: str) -> None:
    torch.manual_seed(1)
    program = gpu_attention.attention(variant, **SMALL)
    args = [a.double() if a.is_floating_point() else a for a in program.args]
    expected = by_hand(variant, [a.numpy() for a in args])
    np.testing.assert_allclose(program.fn(*args).numpy(), expected, rtol=1e-6, atol=1e-9)
    parts = exact_results(program)
    np.testing.assert_allclose(parts[0].numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("variant", FLEXIBLE)
def test_flex_attention_says_the_same(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda fn, **_: fn)
    torch.manual_seed(2)
    program = gpu_attention.attention(variant, **{**SMALL, "seq": 24, "dtype": "float32"})
    flex = program.rivals["flex"].make()
    torch.testing.assert_close(flex(*program.args), program.fn(*program.args), rtol=1e-4, atol=1e-4)


def test_decoding_is_attention_of_the_last_query() -> None:
    torch.manual_seed(3)
    program = gpu_masks.decode(batch=2, keys=11, device="cpu")
    q, k, v = (a.double() for a in program.args)
    many = q.new_zeros(2, 32, 11, 128)
    many[:, :, -1] = q.flatten(1, 2)
    expected = gpu_attention.gqa(many, k, v)[:, :, -1]
    torch.testing.assert_close(program.fn(q, k, v).flatten(1, 2), expected)
    torch.testing.assert_close(program.rivals["sdpa"].make()(q, k, v), program.fn(q, k, v))


@pytest.mark.parametrize("name", sorted(gpu_convs.CONVOLUTIONS))
def test_convolutions_count_each_product_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = gpu_convs.CONVOLUTIONS[name]
    small = dataclasses.replace(case, shape=(1, *(8 for _ in case.shape[1:])))
    monkeypatch.setitem(gpu_convs.CONVOLUTIONS, name, small)
    program = gpu_convs.convolution(name, "float32", device="cpu")
    counter = FlopCounterMode(display=False)
    with counter:
        program.fn(*program.args)
    assert program.flops == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gather", {"rows": 9, "width": 6}),
        ("embedding_gradient", {"rows": 9, "width": 6, "vocabulary": 12}),
        ("least_of_middle", {"shape": (3, 5, 7)}),
        ("diagonal_product", {"size": 5, "width": 6}),
    ],
)
def test_moves_run_and_are_checked(name: str, options: dict[str, Any]) -> None:
    reply = run(f"stack.demos.gpu_moves:{name}", peers="eager", device="cpu", **options)
    for entry in entries(reply).values():
        assert entry["ms"] > 0, entry["problem"]
        assert entry["error"] <= 2**-7


@pytest.mark.parametrize("name", sorted(gpu_written.PROGRAMS))
def test_written_programs_run_and_are_checked(name: str) -> None:
    reply = run("stack.demos.gpu_written:written", "eager", device="cpu", name=name, small=True)
    for entry in entries(reply).values():
        assert entry["ms"] > 0, entry["problem"]
        assert entry["error"] <= 2**-6


def test_work_of_a_mask_counts_what_is_seen() -> None:
    for variant in ("causal", "window", "document", "full"):
        program = gpu_attention.attention(variant, **SMALL)
        ids = program.args[3].numpy() if variant == "document" else None
        batch, heads, length, width = program.args[0].shape
        pairs = sum(
            seen(variant, ids, b, i, j, length) for b, i, j in np.ndindex(batch, length, length)
        )
        assert program.exps == pytest.approx(heads * pairs)
        assert program.flops == pytest.approx(4 * heads * pairs * width)


def test_norms_and_losses_are_torchs_own() -> None:
    F = torch.nn.functional
    x = torch.randn(5, 12).double()
    gain, shift = torch.randn(12).double(), torch.randn(12).double()
    close = torch.testing.assert_close
    close(gpu_rows.rms_norm(x, gain), F.rms_norm(x, (12,), gain, gpu_rows.EPS))
    close(gpu_rows.layer_norm(x, gain, shift), F.layer_norm(x, (12,), gain, shift, gpu_rows.EPS))
    close(gpu_rows.naive_softmax(x), torch.softmax(x, -1))
    target = torch.randint(0, 12, (5,))
    close(gpu_rows.cross_entropy_loss(x, target), F.cross_entropy(x, target))


# ---- running a case


def run(
    spec: str, peers: str = "eager,rivals", own: str = "mlir", **options: Any
) -> dict[str, Any]:
    request = {"spec": spec, "options": options, "peers": peers, "own": own}
    return gpu_worker.run_case(request, lambda _: None, 5, "cpu")


def entries(reply: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {e["system"]: e for e in reply["entries"]}


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norm", {"rows": 7, "width": 24}),
        ("norm", {"rows": 7, "width": 24, "name": "layer_norm", "mode": "backward"}),
        ("epilogue", {"name": "residual_norm", "m": 6, "width": 8, "ffn": 16}),
        ("epilogue", {"name": "row_quantize", "m": 6, "width": 8, "ffn": 16}),
        ("cross_entropy", {"rows": 5, "vocab": 17, "mode": "train"}),
        ("linear_cross_entropy", {"tokens": 5, "width": 8, "vocab": 17}),
    ],
)
def test_a_case_times_and_checks_all_that_can_run(name: str, options: dict[str, Any]) -> None:
    reply = run(f"stack.demos.gpu_rows:{name}", device="cpu", **options)
    found = entries(reply)
    assert found["eager"]["ms"] > 0
    for entry in found.values():
        assert entry["problem"] or (entry["ms"] > 0 and entry["error"] < 0.15)
    if "liger" in found:
        assert found["liger"]["problem"]  # needs a GPU, installed or not
        assert found["liger"]["ms"] is None


@pytest.mark.every(2)
@pytest.mark.parametrize("model", ["llama3-8b", "bert", "moe", "mamba2"])
def test_blocks_run_forward(model: str) -> None:
    found = entries(run("stack.demos.gpu_blocks:block", "eager", model=model, device="cpu", **TINY))
    assert found["eager"]["error"] < 0.15
    assert not found["stack-mlir"]["problem"]
    assert "0 fallback" in found["stack-mlir"]["note"]


def test_training_step_of_ours_and_of_eager() -> None:
    sizes = {"rows": 6, "width": 16, "mode": "train"}
    reply = run("stack.demos.gpu_rows:norm", "eager", device="cpu", **sizes)
    found = entries(reply)
    assert found["stack-mlir"]["ms"] > 0
    assert found["stack-mlir"]["error"] < 0.1
    assert "generated" in found["stack-mlir"]["note"]


def wrong_program(device: str = "cpu") -> GpuProgram:
    """A sum whose rivals are wrong, broken, or write to their arguments."""
    x = torch.randn(64)

    def broken() -> Any:
        raise RuntimeError("not here\nsecond line")

    def spoiling(x: Any) -> Any:
        out = x * 2
        x.zero_()
        return out

    return GpuProgram(
        lambda x: x + x,
        (x,),
        bytes=512,
        rivals={
            "wrong": Rival("library", lambda: lambda x: x * 2.5),
            "nan": Rival("library", lambda: lambda x: x * math.nan),
            "short": Rival("library", lambda: lambda x: (x + x)[:5]),
            "broken": Rival("hand", broken),
            "spoils": Rival("peer", lambda: spoiling, spoils=True),
        },
    )


def test_wrong_broken_and_spoiling_systems_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_rows, "wrong_program", wrong_program, raising=False)
    found = entries(run("stack.demos.gpu_rows:wrong_program", device="cpu"))
    for name in ("wrong", "nan", "short"):
        assert "disagrees" in found[name]["problem"]
        assert found[name]["ms"] is None
    assert found["broken"]["problem"] == "RuntimeError: not here"
    assert found["broken"]["is_ours"]
    assert found["spoils"]["problem"] == ""
    assert found["eager"]["error"] == 0.0


def test_error_of_results() -> None:
    inf, nan = math.inf, math.nan
    a = torch.tensor([1.0, -4.0, inf, nan], dtype=torch.float64)
    assert error_of([a], [torch.tensor([1.0, -4.0, inf, nan])]) == 0
    assert error_of([a], [torch.tensor([2.0, -4.0, inf, nan])]) == 0.25
    assert error_of([a], [torch.tensor([1.0, -4.0, -inf, nan])]) == inf
    assert error_of([a], [torch.tensor([1.0, nan, inf, nan])]) == inf
    assert error_of([a], [torch.tensor([1.0, -4.0, inf])]) == inf
    assert error_of([a], []) == inf
    assert error_of([a[:0]], [torch.zeros(0)]) == 0


# ---- timing


def test_inputs_take_turns_past_the_cache() -> None:
    assert set_count(3 * gpu_timing.L2_BYTES) == 1
    assert set_count(gpu_timing.L2_BYTES) >= 3
    assert set_count(1) == gpu_timing.MOST_SETS
    calls: list[int] = []
    clock = Clock(torch, calls.append, [0, 1, 2], cuda=False)
    assert clock.run(7) == 7
    assert calls == [1, 2, 0, 1, 2, 0, 1]


def test_a_system_that_raises_drops_out() -> None:
    turns = iter(range(100))

    def late(_: Any) -> None:
        if next(turns) > 40:
            raise RuntimeError("worn out")

    def never(_: Any) -> None:
        raise ValueError("no")

    def plain(_: Any) -> None:
        sum(range(1000))

    clocks = [Clock(torch, call, [0], cuda=False) for call in (plain, never, late)]
    first, second, third = interleave(clocks, 5)
    assert isinstance(first, Timing)
    assert len(first.rounds) == 5
    assert isinstance(second, ValueError)
    assert isinstance(third, RuntimeError)


# ---- the bench around the worker


CRASH = {"at": "stack-crash", "kind": "generated", "is_ours": True}


COUNTS = {"flops": 1e9, "bytes": 1e6, "exps": 0.0}


class FakeWorker:
    """Answers as the worker does; a system named "crash" takes it down until it is left out."""

    started = 0

    def __init__(self, say: Any, environment: Any = None) -> None:
        FakeWorker.started += 1
        self.device = "a device"

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("ceilings"):
            return {"flops": 1e12, "bytes": 1e9, "how": "made up"}
        if request["spec"] == "crash" and "stack-crash" not in request["skip"]:
            raise gpu_bench.ProcessLost("an illegal address", CRASH)
        if request["spec"] == "gone":
            raise gpu_bench.ProcessLost("an illegal address", {"at": "the inputs"})
        times = {"stack-triton": 2.0, "hand-kernel": 1.0, "eager": 3.0, "flex": 4.0}
        made = [
            {
                "system": name, "kind": "hand" if "hand" in name else "peer", "ms": ms,
                "spread": 0.01, "rounds_ms": [ms], "compile_s": 1.0, "error": 0.0, "problem": "",
                "note": "",
                "is_ours": name in ("stack-triton", "hand-kernel"), "peak_bytes": 8,
            }
            for name, ms in times.items()
        ]  # fmt: skip
        return {"entries": made, **COUNTS, "spoiled": request["spec"] == "spoils"}

    def close(self, patience: float = 20) -> None:
        """Nothing to end."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_bench, "Worker", FakeWorker)
    monkeypatch.setattr(gpu_bench, "load_torch", lambda: torch)
    FakeWorker.started = 0


@pytest.mark.usefixtures("fake")
def test_ratios_limits_and_pictures(tmp_path: Path) -> None:
    found = gpu_bench.gpu_bench([Case("G6", {"M": 16}, "plain", {})])
    rows = {r["system"]: r for r in found.rows}
    # our own hand-written kernel is no peer
    assert rows["stack-triton"]["ratio_to_best_peer"] == pytest.approx(1.5)
    assert rows["hand-kernel"]["ratio_to_best_peer"] == pytest.approx(3.0)
    assert rows["stack-triton"]["share_of_limit"] == pytest.approx(0.5)
    assert not found.problems
    assert "hand-kernel" in describe(found)
    assert "2.00" in next(x for x in gpu_bench.listing(found).splitlines() if "stack-" in x)
    plot_all(found.rows, found.device, found.ceilings, tmp_path / "gpu")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "gpu-roofline.png", "gpu-roofline.svg", "gpu.png", "gpu.svg",
    ]  # fmt: skip


@pytest.mark.usefixtures("fake")
def test_a_system_that_takes_the_device_down_is_a_row_and_the_rest_goes_on() -> None:
    cases = [Case("G4", {"n": name}, name, {}) for name in ("crash", "gone", "plain")]
    found = gpu_bench.gpu_bench(cases)
    assert FakeWorker.started == 3
    rows = [(r["case"]["n"], r["system"], r["ms"]) for r in found.rows]
    assert ("crash", "stack-crash", None) in rows
    assert ("crash", "eager", 3.0) in rows
    assert ("plain", "eager", 3.0) in rows
    assert not [r for r in rows if r[0] == "gone"]
    assert len(found.problems) == 2
    assert found.exit_code == 1


@pytest.mark.usefixtures("fake")
def test_a_process_that_a_failed_capture_left_broken_is_replaced() -> None:
    cases = [Case("G6", {"n": name}, name, {}) for name in ("spoils", "plain")]
    found = gpu_bench.gpu_bench(cases)
    assert FakeWorker.started == 2
    assert not found.problems and len(found.rows) == 8


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_calls_of_every_mode_go_into_a_cuda_graph(mode: str) -> None:
    spec, options = "stack.demos.gpu_rows:norm", {"rows": 64, "width": 96, "mode": mode}
    request = {"spec": spec, "options": options, "peers": "eager", "own": "triton"}
    reply = gpu_worker.run_case(request, lambda _: None, 5)
    assert not reply["spoiled"]
    for entry in reply["entries"]:
        assert not entry["problem"] and "replayed from a CUDA graph" in entry["note"]


@pytest.mark.usefixtures("fake")
def test_a_spent_budget_names_what_it_left_out() -> None:
    cases = [Case("G6", {"M": m}, "plain", {}) for m in (1, 2, 3)]
    found = gpu_bench.gpu_bench(cases, budget=-1.0)
    assert not found.rows
    assert found.notes == {"left out after -1 seconds": "G6 M=1, G6 M=2, G6 M=3"}


COLD = Case("G21", {"program": "p"}, "plain", {}, peers="inductor,xla", kind="cold")


@pytest.mark.usefixtures("fake")
def test_cold_rows_take_turns_and_the_fastest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    times = iter((3.0, 6.0, 2.0, 5.0))

    def cold(request: dict[str, Any]) -> float:
        asked.append(request["own"] or request["peers"])
        if asked[-1] == "xla":
            raise StackError("no such thing")
        return next(times)

    monkeypatch.setattr(gpu_bench, "_cold_seconds", cold)
    found = gpu_bench.gpu_bench([COLD])
    assert asked == ["triton", "inductor", "xla", "triton", "inductor"]
    rows = {r["system"]: r for r in found.rows}
    assert rows["stack-triton"]["compile_s"] == 2.0
    assert rows["stack-triton"]["ratio_to_best_peer"] == pytest.approx(2.5)
    assert rows["inductor"]["note"] == "fastest of fresh processes: 6.00 s, 5.00 s"
    assert rows["xla"]["ms"] is None
    assert found.problems == ["G21 p: xla: no such thing"]


@pytest.mark.usefixtures("fake")
def test_a_bench_that_is_interrupted_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((3.0, 6.0))

    def cold(request: dict[str, Any]) -> float:
        try:
            return next(times)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(gpu_bench, "_cold_seconds", cold)
    cases = [Case("G6", {"M": 1}, "plain", {}), COLD, Case("G6", {"M": 2}, "plain", {})]
    found = gpu_bench.gpu_bench(cases)
    assert found.notes == {"interrupted, not finished": "G21 p, G6 M=2"}
    rows = {(r["row"], r["system"]): r["ms"] for r in found.rows}
    assert rows["G21", "stack-triton"] == 3000
    assert rows["G21", "inductor"] == 6000
    assert rows["G21", "xla"] is None
    assert rows["G6", "eager"] == 3.0


def test_what_no_implementation_beats() -> None:
    ceilings = Ceilings({"bf16": 1e12}, {1 << 30: 1e9}, 0, "")
    limit = gpu_bench.limit_of
    assert limit({"flops": 2e12, "bytes": 1e9}, ceilings) == pytest.approx(2.0)
    assert limit({"flops": 0, "bytes": 3e9}, ceilings) == pytest.approx(3.0)
    assert limit({"exps": 3.7e12 * 5}, ceilings) == pytest.approx(5.0)
    assert limit({}, ceilings) == 0
