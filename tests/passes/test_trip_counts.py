"""Loops that count from a number to a number."""

from __future__ import annotations

import pytest

import stack
from stack.rewrite import Pipeline

jax = pytest.importorskip("jax")


def counts(fn, *args):  # type: ignore[no-untyped-def]
    func = Pipeline("canonicalize,trip_counts").run(stack.trace(fn, *args)).func
    return [n.attrs.get("trip_count") for n in func.nodes if n.op == "while"]


@pytest.mark.parametrize(
    ("start", "end", "step", "turns"),
    [(0, 7, 1, 7), (2, 7, 1, 5), (0, 7, 3, 3), (-4, 4, 2, 4), (5, 5, 1, 0), (9, 5, 1, 0)],
)
def test_a_loop_that_counts(start: int, end: int, step: int, turns: int) -> None:
    def fn(x):  # type: ignore[no-untyped-def]
        def more(state):  # type: ignore[no-untyped-def]
            return state[0] < end

        def turn(state):  # type: ignore[no-untyped-def]
            return state[0] + step, state[1] * 1.5

        return jax.lax.while_loop(more, turn, (start, x))

    x = jax.numpy.ones(4)
    assert counts(fn, x) == [turns]
    assert int(fn(x)[0]) == max(start, start + turns * step)


def test_a_scan() -> None:
    def fn(x):  # type: ignore[no-untyped-def]
        return jax.lax.scan(lambda c, row: (c + row, c), x[0], x)

    assert counts(fn, jax.numpy.ones((11, 4))) == [11]


@pytest.mark.parametrize(
    "turn",
    [
        lambda i, x, n: (i - 1, x),  # never ends, or at once
        lambda i, x, n: (i * 2, x),
        lambda i, x, n: (i + n, x),  # by what an argument says
        lambda i, x, n: (jax.numpy.where(x[0] > 3, 99, i + 1), x + 1),  # leaves early
    ],
)
def test_a_loop_that_does_not_count(turn) -> None:  # type: ignore[no-untyped-def]
    def fn(x, n):  # type: ignore[no-untyped-def]
        return jax.lax.while_loop(lambda s: s[0] < 7, lambda s: turn(*s, n), (1, x))

    assert counts(fn, jax.numpy.ones(4), jax.numpy.int32(2)) == [None]


def test_an_end_that_data_gives() -> None:
    def fn(x, n):  # type: ignore[no-untyped-def]
        return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (0, x))

    assert counts(fn, jax.numpy.ones(4), jax.numpy.int32(3)) == [None]
