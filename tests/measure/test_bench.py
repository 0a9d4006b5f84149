"""Benches: rows, ratios, floors, cold compiles, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack.cli import main
from stack.demos.cpu_rows import block
from stack.errors import UsageError
from stack.measure import bench as benches
from stack.measure.bench import COLUMNS, Bench, bench, describe, finish_rows, geomean, line_of
from stack.measure.cold_compile import cold_compile
from stack.measure.cpu import cpu_cases
from stack.measure.plots import plot_bench
from stack.measure.roofline import Ceilings, thread_limit
from stack.measure.suite import Case, select
from stack.run.specs import BackendSpec

CEILINGS = Ceilings({"f32": 1e9}, {1 << 20: 1e9}, 1, "made up")
PROGRAM = """
import jax.numpy as jnp

def f(x):
    return jnp.tanh(x) * 2.0

def make(width=8):
    return f, (jnp.linspace(0.0, 1.0, 4 * width).reshape(4, width),)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(PROGRAM)
    return f"{path}:make"


@pytest.fixture
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring what a machine can do takes seconds."""
    monkeypatch.setattr(benches, "measure_ceilings", lambda quick: CEILINGS)


def entry(system: str, ms: float | None, ours: bool = False, limit: float | None = None) -> Any:
    row = dict.fromkeys(COLUMNS)
    row.update(row="C1", case={"seq": 1}, system=system, ms=ms, spread=0.01, is_ours=ours)
    row["limit_ms"] = limit
    return row


def test_ratios_shares_and_floors() -> None:
    found = Bench("here", CEILINGS)
    found.rows = [
        entry("stack-mlir", 2.0, True, 1.5),
        entry("xla/ir", 3.0, limit=1.5),
        entry("tvm/ir", None, limit=1.5),
        entry("odd/ir", 1.0, limit=1.5),
    ]
    finish_rows(found)
    ours, xla, tvm, odd = found.rows
    assert set(ours) == set(COLUMNS)
    assert ours["ratio_to_best_peer"] == pytest.approx(0.5)
    assert xla["ratio_to_best_peer"] == pytest.approx(1 / 3)
    assert tvm["ratio_to_best_peer"] is None
    assert ours["share_of_limit"] == pytest.approx(0.75)
    assert len(found.problems) == 1
    assert "odd/ir" in found.problems[0]
    assert "impossible" in found.problems[0]
    assert found.exit_code == 1
    text = describe(found)
    assert "1.50x" in text
    assert "geometric mean" in text
    assert odd["share_of_limit"] == pytest.approx(1.5)


def rounds(**systems: list[float]) -> Bench:
    """A bench of one case: milliseconds of each round, by system; the first is ours."""
    found = Bench("here", CEILINGS)
    for name, times in systems.items():
        row = entry(name, sorted(times)[len(times) // 2], name == "stack")
        found.rows.append(
            {**row, "system": name.replace("stack", "stack-mlir"), "rounds_ms": times}
        )
    finish_rows(found)
    return found


STILL = [2.0, 2.0, 2.0, 2.0, 2.0]
MOVES = [2.0, 2.2, 1.8, 2.0, 2.4]


def test_no_ratio_where_it_moves_between_rounds() -> None:
    found = rounds(stack=STILL, xla=[2 * t for t in MOVES], eager=[4 * t for t in STILL])
    ours, _, eager = found.rows
    assert ours["ratio_to_best_peer"] is None
    assert "noisy: the ratio of xla is 2.00x (2.00 to 2.20, noisy)" in ours["note"]
    assert ours["ratio_text"] == "2.00x (2.00 to 2.20, noisy)"
    assert eager["ratio_to_best_peer"] is None  # the best other is the one that moves
    line = next(one for one in describe(found).splitlines() if one.startswith("1 "))
    assert line.count("2.00x (2.00 to 2.20, noisy)") == 2  # xla, and with it the best
    assert "4.00x (4.00 to 4.00)" in line  # against eager, which does not vary
    (mean,) = [one for one in describe(found).splitlines() if one.startswith("geometric mean")]
    assert mean.split()[-2:] == ["4.00x", "-"]  # noisy ratios are not averaged


def test_a_row_is_told_as_soon_as_it_is_measured() -> None:
    rows = [entry("stack-mlir", 2.0, True), entry("xla", 3.0), entry("tvm", None)]
    assert line_of(rows) == "  stack-mlir 2.00 ms; xla 3.00 ms, 1.50x (1.50 to 1.50) of ours"
    assert line_of(rows[2:]) == "  no times"


@pytest.mark.usefixtures("known_ceilings")
def test_an_interrupt_keeps_the_rows_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(found: Bench, case: Case, *_: Any) -> None:
        if case.case["n"] == 2:
            raise KeyboardInterrupt
        found.rows += [entry("stack-mlir", 2.0, True), entry("xla", 3.0)]

    monkeypatch.setattr(benches, "_run_rows", measured)
    said: list[str] = []
    cases = [Case("C3", {"n": n}, "made up", {}) for n in (1, 2, 3)]
    found = bench(cases, say=said.append)
    assert [row["ms"] for row in found.rows] == [2.0, 3.0]
    assert found.notes == {"interrupted, not finished": "C3 n=2, C3 n=3"}
    assert "  stack-mlir 2.00 ms; xla 3.00 ms" in said[2]  # before the next case


def test_a_machine_of_two_speeds_makes_ratios() -> None:
    """Both are slow in the same rounds: times move by a factor of two, what they are to each
    other does not. The ratio of their medians would be 3.00x here."""
    found = rounds(stack=[2.0, 2.0, 4.0, 4.0, 2.0], xla=[3.0, 3.0, 6.0, 6.0, 6.0])
    assert found.rows[0]["ratio_to_best_peer"] == pytest.approx(1.5)
    assert not found.rows[0]["note"]
    assert "1.50x" in describe(found)


def test_the_best_other_is_so_by_rounds() -> None:
    """One that was asked less often than the others is compared by the rounds that it has."""
    found = rounds(stack=[1.0, 1.0, 1.0, 2.0, 2.0], xla=[3.0, 3.0, 3.0, 6.0, 6.0], eager=[2.0] * 3)
    assert found.rows[0]["ratio_to_best_peer"] == pytest.approx(2.0)


def test_several_of_ours_stand_beside_each_other() -> None:
    found = Bench("here", CEILINGS)
    found.rows = [
        entry("stack-mlir default", 2.0, True),
        entry("stack-mlir mine", 5.0, True),
        entry("xla", 4.0),
    ]
    finish_rows(found)
    first, second, *means = [
        [cell for cell in line.split() if cell.endswith("x")]
        for line in describe(found).splitlines()
        if line.startswith(("1 ", "geometric"))
    ]
    assert first == ["1.00x", "2.50x", "2.00x", "2.00x"]  # ours twice, xla, best of the others
    assert second == ["0.40x", "1.00x", "0.80x", "0.80x"]
    assert means == [first, second]


def test_geomean() -> None:
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)


def test_the_cpu_suite_has_the_rows_that_were_promised() -> None:
    cases = cpu_cases()
    blocks = [c.case for c in cases if c.row == "C1"]
    assert {c["seq"] for c in blocks} == {128, 512, 2048}
    assert {c["dtype"] for c in blocks} == {"f32", "bf16"}
    assert {c["model"] for c in blocks} == {"gpt2", "llama"}
    assert len(blocks) == 12
    names = {c.case["function"] for c in cases if c.row == "C3"}
    assert {"gelu_erf", "gelu_tanh", "softmax", "layer_norm", "rope"} <= names
    assert [c.kind for c in cases if c.row == "C4"] == ["cold"] * 3
    awkward = [c for c in cases if c.row == "C5"]
    assert {c.threads for c in awkward} == {0, 1, 4}
    assert {"product", "softmax", "relu", "sum"} <= {c.case["function"] for c in awkward}
    assert {c.case["shape"] for c in awkward} == {"511x769", "512x768", "1x1"}
    layouts = {"dense", "columns", "transposed", "unaligned", "expanded", "slice"}
    assert {c.case["layout"] for c in awkward} == layouts
    quick = select(cpu_cases(True), None, (), True)
    assert {c.row for c in quick} == {"C1", "C2", "C3", "C4", "C6"}
    assert all("tvm" not in c.peers and "max-autotune" not in c.peers for c in quick)


@pytest.mark.parametrize("gradients", [True, False])
def test_cold_programs_have_gradients_where_the_case_says_so(gradients: bool) -> None:
    pytest.importorskip("torch")
    found = [
        options
        for c in cpu_cases()
        if c.row == "C4" and ("without" in c.title) is not gradients and c.second
        for options in (c.options, c.second)
    ]
    assert len(found) == 2
    for options in found:
        module, args = block(**options)
        assert module(*args).requires_grad is gradients


def test_threads_are_those_of_the_case_and_then_as_before() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    with pytest.raises(ValueError), thread_limit(before + 2):
        assert torch.get_num_threads() == before + 2
        raise ValueError
    with thread_limit(0):
        assert torch.get_num_threads() == before


def test_selection() -> None:
    cases = cpu_cases()
    assert {c.row for c in select(cases, "C1,C4")} == {"C1", "C4"}
    chosen = select(cases, "C1", ["seq=512", "dtype=f32"])
    assert [c.case["model"] for c in chosen] == ["gpt2", "llama"]
    for rows, only in (("C9", ()), ("C1", ["seq"]), ("C1", ["sex=1"]), ("C1", ["seq=7"])):
        with pytest.raises(UsageError):
            select(cases, rows, only)


@pytest.mark.parametrize("case", [c for c in cpu_cases() if c.row == "C3"][:1])
def test_a_pointwise_case_is_the_same_function_in_both_frameworks(case: Case) -> None:
    import numpy as np

    from stack.measure.bench import programs_of

    for name in ("gelu_tanh", "softmax", "layer_norm", "rms_norm", "rope"):
        one = Case("C3", {}, case.spec, {"name": name, "width": 16}, "torch", ("jax",))
        torch_program, jax_program = programs_of(one)
        a = torch_program.func.interpret(*torch_program.storage)
        b = jax_program.func.interpret(*jax_program.storage)
        assert np.allclose(a, b, atol=1e-5), name


@pytest.mark.usefixtures("third_party")
def test_bench_of_a_program(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, picture = tmp_path / "rows.csv", tmp_path / "rows.svg"
    capsys.readouterr()
    argv = ["bench", program, "--with", "goodpeer,absentpeer", "--quick", "--rounds", "5"]
    code = main([*argv, "--json", "--csv", str(table), "--plot", str(picture)])
    out = capsys.readouterr().out
    document = json.loads(out)
    assert code == 5, document["problems"]
    assert document["schema"] == "stack.bench/1"
    assert {"device", "versions", "ceilings", "rows"} <= set(document)
    assert document["ceilings"]["F_f32_gflops"] > 0
    assert document["missing"] == {"absentpeer": "pip install absent"}
    assert [r["system"] for r in document["rows"]] == ["stack-mlir", "goodpeer/ir"]
    for row in document["rows"]:
        assert set(row) == set(COLUMNS)
        assert row["ms"] > 0
        assert row["error"] < 1e-5
    assert [r["kind"] for r in document["rows"]] == ["generated", "peer"]
    assert table.read_text().startswith("row,target,system,kind,ms")
    assert "<svg" in picture.read_text()


@pytest.mark.usefixtures("known_ceilings")
def test_pipelines_of_ours_are_systems_of_one_run(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ("default", "default,-fuse")
    argv = ["bench", program, "--with", "", "--quick", "--rounds", "5", "--json"]
    assert main([*argv, *(word for passes in both for word in ("--passes", passes))]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [r["system"] for r in rows] == [f"stack-mlir {passes}" for passes in both]
    assert [r["kernels"] for r in rows] == [1, 2]
    assert main(["bench", "gpu", "--passes", "default"]) == 2


@pytest.mark.usefixtures("third_party", "known_ceilings")
def test_a_system_that_fails_keeps_its_row(program: str) -> None:
    case = Case("X", {"n": 1}, program, {"width": 16}, peers="wrongpeer,crashpeer")
    found = bench([case], rounds=5, quick=True)
    assert [r["ms"] is None for r in found.rows] == [False, True, True]
    assert len(found.problems) == 2
    assert found.exit_code == 1


@pytest.mark.usefixtures("known_ceilings")
@pytest.mark.parametrize(("ir_only", "ways"), [((), ["ir", "native"]), (("eager",), ["ir"])])
def test_a_way_that_is_the_same_is_left_out(
    ir_only: tuple[str, ...], ways: list[str], program: str
) -> None:
    case = Case("X", {"n": 1}, program, {"width": 16}, peers="eager", ir_only=ir_only)
    found = bench([case], rounds=5, quick=True)
    assert [r["system"] for r in found.rows] == ["stack-mlir", *(f"eager/{way}" for way in ways)]


@pytest.mark.usefixtures("third_party")
def test_cold_compiles_run_in_processes_of_their_own(program: str) -> None:
    case = Case("C4", {}, program, {"width": 8}, "jax", second={"width": 16}, kind="cold")
    own = cold_compile(case, None, "own", "jax")
    assert own.problem == ""
    assert len(own.seconds) == 2
    assert own.seconds[0] > own.seconds[1] > 0
    peer = cold_compile(case, BackendSpec("goodpeer", "goodpeer"), "ir", "jax")
    assert len(peer.seconds) == 2
    assert (
        "no native way"
        in cold_compile(case, BackendSpec("goodpeer", "goodpeer"), "native", "jax").problem
    )
    assert (
        "no lowering"
        in cold_compile(case, BackendSpec("refusepeer", "refusepeer"), "ir", "jax").problem
    )


def test_an_unknown_format_of_plots_is_refused(tmp_path: Path) -> None:
    found = Bench("here", CEILINGS, [entry("stack-mlir", 2.0, True)])
    finish_rows(found)
    with pytest.raises(UsageError, match=r"plot\.xyz"):
        plot_bench(found.rows, "here", tmp_path / "plot.xyz")


def test_suites_and_programs_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tpu"]) == 2
    assert "cpu" in capsys.readouterr().err
    assert main(["bench", "net.py:f", "--rows", "C1"]) == 2


@pytest.mark.parametrize("peer", ["xlaa", "jax.jit"])
def test_an_unknown_peer_is_refused_before_a_row_runs(
    peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "models", "--with", peer]) == 2
    said = capsys.readouterr().err
    assert repr(peer) in said and "triton, tvm, xla" in said and "measuring" not in said


@pytest.mark.usefixtures("known_ceilings")
def test_a_spent_budget_names_what_it_left_out() -> None:
    found = bench(cpu_cases(quick=True), budget=-1.0, quick=True)
    assert not found.rows
    assert "C1 gpt2 seq=128 f32" in found.notes["left out after -1 seconds"]
