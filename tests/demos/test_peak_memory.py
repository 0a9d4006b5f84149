"""Peaks of processes: a table of them, and which differ from eager's."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from stack.demos import peak_memory

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_peak_above_eagers_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(name: str, train: bool, system: str) -> dict[str, float]:
        more = system == "stack" and name == "large" and train
        return {"before": 100.0, "peak": 300.0 + more}

    monkeypatch.setattr(peak_memory, "in_fresh_process", told)
    assert peak_memory.main(["small"]) == 0
    assert "above eager's: nothing" in capsys.readouterr().out
    assert peak_memory.main(["small", "large"]) == 1
    assert "above eager's: large, training step" in capsys.readouterr().out


@needs_proc
def test_a_peak_holds_what_a_step_makes() -> None:
    # fresh: a process that ran other tests may give memory back in the step
    made = peak_memory.in_fresh_process("quick", True, "eager")
    assert 0 < made["before"] < made["peak"]


@needs_proc
@pytest.mark.slow
def test_quick(capsys: pytest.CaptureFixture[str]) -> None:
    assert peak_memory.main(["--quick"]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()[2:6]]
    assert [w[-5] for w in words] == ["eager", "stack"] * 2
    assert all(0 < float(w[-4]) < float(w[-3]) for w in words)
