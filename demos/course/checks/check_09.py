from __future__ import annotations

from typing import Any

import numpy as np

from stack.demos.course.answers import ask, equal, lines_run, show
from stack.ops.scan.associative import sequential


def _state(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The states of rows of scores."""
    top = scores.max(1)
    return top, np.exp(scores - top[:, None]).sum(1)


def check_softmax(student: Any) -> None:
    """softmax_state of two parts is the state of both

    Hint: m = np.maximum(m1, m2). Multiply each l by exp(its own m - m), then add.
    The states are arrays, so Python's max does not take them.
    """
    rng = np.random.default_rng(6)
    scores = rng.standard_normal((3, 6)).round(1) * [[1.0], [1.0], [100.0]]
    for cut in (1, 3, 5):
        parts = _state(scores[:, :cut]), _state(scores[:, cut:])
        for earlier, later in (parts, parts[::-1]):
            given = f"np, {show(earlier)}, {show(later)}"
            ask(student.softmax_state, np, earlier, later, given=given).equals(_state(scores))


def check_associative(student: Any) -> None:
    """softmax_state is associative: a scan gives the sum of the whole softmax

    Hint: a result with another m than its l was corrected to does not combine further.
    """
    scores = np.random.default_rng(7).standard_normal(40) * 30
    ones = np.ones(40)
    scan = lambda: sequential(student.softmax_state, (scores, ones))
    question = ask(scan, given=f"scan of {show(scores)}")
    wanted = float(np.exp(scores - scores.max()).sum())
    m, l = question.answer(show(wanted))
    if not equal(scores.max(), m[-1]) or not equal(wanted, l[-1]):
        expected = f"m {show(scores.max())}, l {show(wanted)} at the end"
        raise question.wrong(expected, f"m {show(m[-1])}, l {show(l[-1])}")


def _scan(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    found, h = [], 0.0
    for gate, value in zip(a, x, strict=True):
        h = gate * h + value
        found.append(h)
    return np.array(found)


def check_tiled(student: Any) -> None:
    """tiled agrees with the loop, for tiles of 1, of some, and of all

    Hint: within a tile, h = local + product * carried, where local starts from zero and product is
    np.cumprod of the gates of the tile. A gate may be 0: do not divide by products.
    """
    rng = np.random.default_rng(8)
    a, x = rng.uniform(-1, 1, 24).round(2), rng.standard_normal(24).round(2)
    a[9] = 0.0  # so a product of gates is no divisor
    for tile in (1, 6, 24):
        ask(student.tiled, a, x, tile).equals(_scan(a, x))


def check_parallel(student: Any) -> None:
    """tiled computes all tiles at once: it takes about n / tile + tile steps, and not n

    Hint: a.reshape(-1, tile) has a tile in each row. Step i of all tiles is one operation on column
    i; the loop over the tiles only adds what is carried.
    """
    n, tile = 4096, 64
    rng = np.random.default_rng(9)
    a, x = rng.uniform(-1, 1, n), rng.standard_normal(n)
    question = ask(student.tiled, a, x, tile, given=f"4096 gates, 4096 values, {tile}")
    expected = f"at most {n // 4} lines of Python executed, loops counted"
    found, lines = lines_run(student.tiled, lambda: question.answer(expected))
    if not equal(_scan(a, x), found):
        raise question.wrong("the values of the loop", "other values")
    if lines > n // 4:
        raise question.wrong(expected, f"{lines} lines")
