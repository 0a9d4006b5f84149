"""Pipeline schedules: every piece of work once, what it needs before it, textbook bubbles."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stack.errors import UsageError
from stack.sim.pipeline import KINDS, Work, formula, order_of, pipeline

SIZES = [(1, 1), (2, 4), (4, 8), (8, 32)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "batches"), SIZES)
def test_bubbles_are_those_of_the_formula(kind: str, ranks: int, batches: int) -> None:
    schedule = pipeline(kind, ranks, batches)
    assert schedule.bubble == pytest.approx(formula(kind, ranks, batches))


@pytest.mark.parametrize("kind", KINDS)
def test_work_is_done_once_and_in_order(kind: str) -> None:
    schedule = pipeline(kind, 4, 8, {"F": 1.0, "B": 1.3, "W": 0.8}, send=0.1)
    ends = {p.work: p.end for rank in schedule.ranks for p in rank}
    parts = "FBW" if kind == "zero_bubble" else "FB"
    assert len(ends) == len(parts) * 8 * schedule.chunks
    assert sum(map(len, schedule.ranks)) == len(ends)
    for rank, placed in enumerate(schedule.ranks):
        assert all(a.end <= b.start for a, b in pairwise(placed))
        for p in placed:
            assert p.work.chunk % 4 == rank
            for need in needs(p.work, schedule.chunks):
                assert ends[need] + 0.1 * (need.chunk != p.work.chunk) <= p.start + 1e-9


def needs(work: Work, chunks: int) -> list[Work]:
    kind, chunk, batch = work
    if kind == "F":
        return [Work("F", chunk - 1, batch)] if chunk else []
    if kind == "W":
        return [Work("B", chunk, batch)]
    later = [Work("B", chunk + 1, batch)] if chunk + 1 < chunks else []
    return [Work("F", chunk, batch), *later]


def test_gradients_of_weights_follow_at_once_unless_they_fill_bubbles() -> None:
    order = order_of(pipeline("1f1b", 2, 2))[1]
    assert [w.kind for w in order] == ["F", "B", "W", "F", "B", "W"]
    kinds = [w.kind for w in order_of(pipeline("zero_bubble", 2, 4))[0]]
    assert kinds.count("W") == 4


def test_bad_schedules() -> None:
    with pytest.raises(UsageError, match="not one of gpipe"):
        pipeline("1b1f", 2, 2)
    with pytest.raises(UsageError, match="3 chunks"):
        pipeline("interleaved", 2, 2, chunks=3)
