"""Stories that count: what they tell is so, and each ends in exit code 0."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")  # operators that are declared after it are torch's for all tests

from stack.cli import main
from stack.demos import experts, memory, numerics
from stack.run.memory import Lifetime, place


@pytest.mark.slow
@pytest.mark.parametrize("name", ["capture", "cost", "fusion", "memory"])
def test_a_story_ends_well(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module(f"stack.demos.{name}").main() == 0
    assert capsys.readouterr().out.strip()


def test_numerics(capsys: pytest.CaptureFixture[str]) -> None:
    assert numerics.main() == 0
    assert "all of it holds" in capsys.readouterr().out


def test_experts(capsys: pytest.CaptureFixture[str]) -> None:
    assert experts.main() == 0
    assert "is the dense sum" in capsys.readouterr().out
    assert experts.usage(np.array([16, 17]), 0) == (
        experts.TOKENS * experts.TOP - 33,
        33 / 48,
    )


def test_operators_of_the_table_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    table = (Path(experts.__file__).parent / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"`stackc ops ([\w.]+)`", table)
    assert names
    for name in names:
        assert main(["ops", name]) == 0
    assert "Zhang and Sennrich" in capsys.readouterr().out


def test_products_are_2_n_d_and_attention() -> None:
    from stack.demos import cost

    text, wrong = cost.forward_and_training((16,))
    assert not wrong
    assert text.count("\n") == 2


def test_kinds_of_fusion_save_bytes() -> None:
    from stack.demos import fusion

    row, why, error = fusion.tell(fusion.PATTERNS[0])
    assert row[1:] == [3, 1, "6.29 MB", "2.10 MB", "3.0x"]  # two reads and writes of 1 MB less
    assert not why
    assert error < fusion.TOLERANCE


def test_an_allocator_splits_and_joins() -> None:
    allocator = memory.CachingAllocator()
    first, second = allocator.take(1000), allocator.take(1)
    assert (first, second) == ((0, 1024), (1024, 512))
    allocator.give(first)
    assert allocator.take(512) == (0, 512)  # split
    allocator.give((0, 512))
    allocator.give(second)
    assert allocator.free == [(0, 1536)]  # joined
    assert allocator.size == 1536


def test_a_plan_needs_no_more_than_what_is_alive() -> None:
    lives = [Lifetime(512, 0, 1), Lifetime(1024, 1, 3), Lifetime(512, 2, 3), Lifetime(512, 3, 4)]
    assert memory.live_at_once(lives) == 2048
    assert place(lives)[1] == 2048
    peak, torn = memory.cached(lives)
    assert peak == 2048
    assert torn == 0
