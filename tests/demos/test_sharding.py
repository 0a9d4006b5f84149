"""The story of a block on a mesh: equal to PyTorch, with the bytes that formulas give."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from stack.demos.sharding import WIDTH, story  # noqa: E402
from stack.demos.sharding_measured import story as measured  # noqa: E402
from stack.demos.sharding_measured import worst  # noqa: E402


def test_story(capsys: pytest.CaptureFixture[str]) -> None:
    sent = story()
    x = 8 // 2 * 64 * WIDTH * 4  # of a rank that has a part of the batch
    assert sent["data"] == 0
    assert sent["tensor"] == sent["tensor + sequence"] == 2 * 2 * x * 3 // 4
    assert sent["context"] == 4 * (x // 4) * 3 // 4
    told = capsys.readouterr().out
    assert "mesh @m(dp=2, tp=4)" in told
    assert "%mm_3 to f32[8{dp}, 64, 256] @m for %x_1: all_reduce(tp): 393216 bytes" in told


@pytest.mark.slow
def test_what_training_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """State is what the formula says, simulated peaks are near measured ones; drawings are made."""
    rows = measured(tmp_path)
    for row in rows:
        if row[1].startswith("weights"):
            assert abs(float(row[2]) / float(row[4]) - 1) < 0.02
    assert worst(rows) < 0.35
    assert {p.name for p in tmp_path.iterdir()} >= {"fsdp.svg", "dp.trace.json", "1f1b.svg"}
    assert "pipeline zero_bubble" in capsys.readouterr().out
