"""A pool of processes: what they return, and ranks that raise or do not answer."""

from __future__ import annotations

import os
import time

import pytest

from stack.errors import StackError, UsageError
from stack.run.ranks import Ranks


def times(rank: int, ranks: int, x: int) -> tuple[int, int]:
    if x < 0:
        raise ValueError(f"{x} is below 0")
    return rank * x, os.getpid()


def stops(rank: int, ranks: int, how: str) -> None:
    if rank == 1 and how == "dies":
        os._exit(7)
    if rank == 1:
        time.sleep(60)


def test_processes_stay() -> None:
    with Ranks(2) as ranks:
        first, second = ranks.run(times, 3), ranks.run_each(times, [(5,), (6,)])
    assert [value for value, _ in first] == [0, 3]
    assert [value for value, _ in second] == [0, 6]
    assert [process for _, process in first] == [process for _, process in second]


def test_what_a_rank_raises_is_told_and_ends_all() -> None:
    with Ranks(2) as ranks:
        with pytest.raises(StackError, match=r"rank [01]: ValueError: -1 is below 0"):
            ranks.run(times, -1)
        with pytest.raises(StackError, match="the ranks have ended"):
            ranks.run(times, 1)


@pytest.mark.parametrize(
    ("how", "said"), [("dies", "rank 1 has died with code 7"), ("late", r"ranks \[1\] are late")]
)
def test_a_rank_that_does_not_answer_is_named(how: str, said: str) -> None:
    with Ranks(2, limit=4) as ranks, pytest.raises(StackError, match=said):
        ranks.run(stops, how)


def test_no_ranks() -> None:
    with pytest.raises(UsageError, match="at least one"):
        Ranks(0)
