"""Calls that return often do not map memory for their frames, however deep they are."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from stack.cpython import undisturbed

CALLS, DEEPEST = 500, 400


def _leaf(a: int, b: int = 0, c: int = 0, d: int = 0) -> int:
    return a + b + c + d


def _calls() -> int:
    """Pages that the system hands out while a function is called and returns, again and again."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for n in range(CALLS):
        _leaf(n)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _at(depth: int) -> int:
    return _at(depth - 1) if depth else _calls()


def _most(at: Callable[[int], int]) -> int:
    return max(at(depth) for depth in range(DEEPEST))


def test_no_depth_costs_a_page_for_each_call() -> None:
    if _most(_at) < CALLS:
        pytest.skip("this Python has no end of a chunk among the first calls")
    assert _most(undisturbed(_at)) < CALLS


def test_it_is_the_function() -> None:
    @undisturbed
    def add(a: int, *, b: int = 1) -> int:
        """A sum."""
        return a + b

    assert (add(1), add(1, b=2), add.__name__, add.__doc__) == (2, 3, "add", "A sum.")
    with pytest.raises(TypeError, match="unexpected keyword"):
        add(1, c=2)  # pyright: ignore[reportCallIssue]


def test_rooms_in_rooms() -> None:
    @undisturbed
    def down(depth: int) -> int:
        return down(depth - 1) + 1 if depth else 0

    assert down(100) == 100
