"""The story of a block on a mesh: equal to PyTorch, with the bytes that formulas give."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stack.demos.sharding import WIDTH, story  # noqa: E402


def test_story(capsys: pytest.CaptureFixture[str]) -> None:
    sent = story()
    x = 8 // 2 * 64 * WIDTH * 4  # of a rank that has a part of the batch
    assert sent["data"] == 0
    assert sent["tensor"] == sent["tensor + sequence"] == 2 * 2 * x * 3 // 4
    assert sent["context"] == 4 * (x // 4) * 3 // 4
    told = capsys.readouterr().out
    assert "mesh @m(dp=2, tp=4)" in told
    assert "%mm_3 to f32[8{dp}, 64, 256] @m for %x_1: all_reduce(tp): 393216 bytes" in told
