"""The demo of hosted operators, and the suite that races them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import stack
from stack.demos import ops
from stack.demos.gpu_ops import LANGUAGES, operator
from stack.demos.ops_teller import Teller
from stack.errors import StackError, UsageError
from stack.explore.target import ExampleCall, resolve
from stack.hosted import declared, find
from stack.measure.bench import Bench
from stack.measure.ops import BY_HAND, HAND, RANKS, ROWS, SKIPPED, ops_cases
from stack.measure.reference import error_of, reference
from stack.measure.roofline import Ceilings
from stack.measure.suite import Case, select
from stack.measure.systems import capture_program
from stack.run.trace import find_frontend


def test_stories_that_take_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ops.main(["norm", "moe", "lora", "-o", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "1 kernel" in told and "all results agree" in told
    for family in ("norm", "moe", "lora"):
        assert (tmp_path / f"{family}.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_all_stories(tmp_path: Path) -> None:
    assert ops.main(["-o", str(tmp_path)]) == 0
    assert {p.stem for p in tmp_path.iterdir()} == {
        *("attention", "memory", "norm", "loss", "qgemm", "moe", "lora")
    }


def test_a_story_whose_results_differ_fails() -> None:
    teller = Teller()
    teller.check("same", np.ones(3), np.ones(3))
    assert not teller.wrong
    teller.check("other", np.ones(3), np.ones(3) * 1.01)
    assert len(teller.wrong) == 1


def test_what_masks_leave() -> None:
    seen = ops.seen(ops.programs.PLAIN, 4, causal=True, window=2)
    np.testing.assert_array_equal(seen, np.tril(np.ones((4, 4))) * np.triu(np.ones((4, 4)), -1))


def test_the_suite_names_operators_and_rows_of_the_bench() -> None:
    operators = {op for _, op, _ in ROWS}
    assert operators <= set(declared())
    promised = {f"G{n}" for n in (1, 2, 3, 5, 8, 9, 10, 15, 16, 17, 18, 19)}
    for device in ("cpu", "cuda"):
        cases = ops_cases(device)
        assert {c.case["op"] for c in cases if not c.skip} == operators
        assert promised <= {c.row for c in cases}
        assert {c.row for c in cases if c.skip} == set(RANKS)
        assert {c.row for c in cases if c.quick} == {c.row for c in cases}
        assert select(cases, "G5", ["op=attention.paged"])
    with pytest.raises(UsageError, match="no row 'C1'"):
        select(ops_cases(), "C1")


def test_code_by_hand_races_beside_what_is_generated() -> None:
    hand = {n for _, n, _ in ROWS if any(k.device == "cpu" for k in find(n).kernels)}
    assert {c.case["op"] for c in ops_cases() if HAND in c.own} == hand == set(BY_HAND)


def test_a_row_that_is_skipped_says_why() -> None:
    skipped = [c for c in ops_cases() if c.row == "G18"]
    found = Bench("a machine", Ceilings({}, {}, 0, ""))
    for case in skipped:
        found.skip(case, "mlir")
    (row,) = found.rows
    assert row["row"] == "G18" and row["ms"] is None and row["note"] == f"skipped: {SKIPPED}"
    assert found.skipped == {"G18 all-reduce": SKIPPED} and found.exit_code == 0


def test_every_row_has_a_program() -> None:
    programs = pytest.importorskip("stack.demos.ops_programs")
    assert set(programs.PROGRAMS) == {op for _, op, _ in ROWS}
    call, args = programs.program("norm.rms_norm")
    assert call(*args).shape == args[0].shape
    call, args = programs.program("scan.gated", mode="backward")
    assert [g.shape for g in call(*args)] == [a.shape for a in args[:3]]
    with pytest.raises(UsageError, match="declares no gradient"):
        programs.program("scan.inclusive", mode="backward")


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in ops_cases() if not c.skip], ids=lambda c: c.title)
def test_programs_compute_what_their_operators_say(case: Case) -> None:
    """Compiled, against double precision."""
    target = resolve(case.spec, case.frontend, case.inputs, case.options)
    assert isinstance(target, ExampleCall)
    program = capture_program(
        find_frontend(target.fn, target.args, "torch"), target.fn, target.args
    )
    compiled = stack.compile(target.fn, *target.args, hosted="generated")
    out = compiled(*target.args)
    found = [np.asarray(o) for o in (out if isinstance(out, tuple) else (out,))]
    types = [r.tensor for r in program.func.results]
    assert error_of(reference(program.func, program.storage), found, types) < 1e-4


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_rival_in_another_language_names_the_package_that_it_lacks(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = {"cutile": "cuda.tile", "cutedsl": "cutlass"}.get(language, language)
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    monkeypatch.delitem(sys.modules, f"stack.demos.gpu_{language}", raising=False)
    rival = operator("norm.rms_norm", device="cpu").rivals[language]
    with pytest.raises(StackError, match=f"{package} is not installed"):
        rival.make()
