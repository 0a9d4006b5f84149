"""Random lists of steps: a legal step leaves what a kernel computes, an illegal one says why."""

from __future__ import annotations

import pytest
from nest_cases import around, drawn, drawn_nests, groups, wrong

LENGTH = 8  # of a list


def run(seeds: range, programs: range) -> tuple[int, int]:
    """The numbers of legal and of illegal steps. Fails at the first that changes values."""
    found = list(groups(programs))
    legal = refused = 0
    for seed, rng, func, kernel, arrays, want, near in drawn_nests(seeds, found):
        done: list[str] = []
        for _ in range(LENGTH):
            step = drawn(rng, kernel)
            if step.why_not(kernel):
                refused += 1
                continue
            kernel = step.apply(kernel)
            done.append(str(step))
            legal += 1
            why = wrong(kernel, arrays, want, near)
            assert not why, f"{seed}: {why} after {'; '.join(done)}\n{func}\n{around(kernel)}"
    return legal, refused


def test_random_lists() -> None:
    legal, refused = run(range(40), range(10))
    assert legal > 40 and refused > 40


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 5000, 200))
def test_many_random_lists(start: int) -> None:
    legal, refused = run(range(start, start + 200), range(start // 100, start // 100 + 20))
    assert legal > 200 and refused > 200
