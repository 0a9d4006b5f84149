"""The demo of hosted operators, and the suite that races them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stack.demos import ops
from stack.errors import UsageError
from stack.hosted import declared
from stack.measure.ops import ROWS, ops_cases
from stack.measure.suite import select


def test_stories_that_take_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ops.main(["norm", "-o", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "1 kernel" in told and "all results agree" in told
    assert (tmp_path / "norm.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_all_stories(tmp_path: Path) -> None:
    assert ops.main(["-o", str(tmp_path)]) == 0
    assert {p.stem for p in tmp_path.iterdir()} == {"attention", "memory", "norm", "loss"}


def test_a_story_whose_results_differ_fails() -> None:
    teller = ops.Teller()
    teller.check("same", np.ones(3), np.ones(3))
    assert not teller.wrong
    teller.check("other", np.ones(3), np.ones(3) * 1.01)
    assert len(teller.wrong) == 1


def test_what_masks_leave() -> None:
    seen = ops.seen(ops.programs.PLAIN, 4, causal=True, window=2)
    np.testing.assert_array_equal(seen, np.tril(np.ones((4, 4))) * np.triu(np.ones((4, 4)), -1))


def test_the_suite_names_operators_and_rows_of_the_bench() -> None:
    assert set(ROWS) <= set(declared())
    for device in ("cpu", "cuda"):
        cases = ops_cases(device)
        assert {c.case["op"] for c in cases} == set(ROWS)
        assert select(cases, "G5", ["op=attention.paged"])
    with pytest.raises(UsageError, match="no row 'C1'"):
        select(ops_cases(), "C1")


def test_every_row_has_a_program() -> None:
    programs = pytest.importorskip("stack.demos.ops_programs")
    assert set(programs.PROGRAMS) == set(ROWS)
    call, args = programs.program("norm.rms_norm")
    assert call(*args).shape == args[0].shape
