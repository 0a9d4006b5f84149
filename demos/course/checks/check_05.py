from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stack.demos.course.answers import ask, peak_memory

State = tuple[float, float, np.ndarray]
NOTHING: State = (-np.inf, 0.0, np.zeros(2))


def _state(scores: np.ndarray, values: np.ndarray) -> State:
    top = scores.max()
    weights = np.exp(scores - top)
    return float(top), float(weights.sum()), weights @ values


def _row(scale: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal(6).round(1) * scale, rng.standard_normal((6, 2)).round(1)


def check_merge(student: Any) -> None:
    """merge of two parts is the state of the whole row, whichever has the larger maximum

    Hint: m is the larger maximum. Multiply l and o of each part by exp(its own m - m), then add.
    """
    for scale in (1.0, 0.0, 1000.0):  # both parts count, equal maxima, and exp overflows
        scores, values = _row(scale)
        for cut in (2, 4):
            parts = _state(scores[:cut], values[:cut]), _state(scores[cut:], values[cut:])
            for a, b in (parts, parts[::-1]):
                ask(student.merge, a, b).equals(_state(scores, values))


def check_nothing(student: Any) -> None:
    """a part without scores changes nothing, and makes no nan

    Hint: -inf - -inf is nan. If the larger maximum is -inf, both parts are empty: return one.
    """
    whole = _state(*_row(1.0))
    for a, b, wanted in (
        (whole, NOTHING, whole),
        (NOTHING, whole, whole),
        (NOTHING, NOTHING, NOTHING),
    ):
        ask(student.merge, a, b).equals(wanted)


def check_variance(student: Any) -> None:
    """running_variance keeps its digits far from zero

    Hint: delta = x - mean, then mean += delta / count, then squares += delta * (x - mean) with the
    new mean.
    """
    for values in ([3.0], [1.0, 2.0, 4.0], _far()):
        wanted = float(((np.array(values) - np.mean(values)) ** 2).sum())
        ask(student.running_variance, values).equals(wanted, rtol=1e-4)


def _far() -> list[float]:
    return (1e8 + np.random.default_rng(2).standard_normal(1000)).tolist()


def check_one_pass(student: Any) -> None:
    """running_variance reads its values once, and does not store them

    Hint: `for x in values` is the only loop. A list or an array of the values has all of them in
    memory, and needs a second pass.
    """
    count = 20_000

    def stream() -> Iterator[float]:
        yield from map(float, range(count))

    question = ask(
        lambda: student.running_variance(stream()),
        given=f"running_variance(iterator of {count} numbers)",
    )
    expected = "a sum of squares, with three numbers in memory"
    found, peak = peak_memory(lambda: question.answer(expected))
    if peak > 8 * count // 2:
        raise question.wrong(expected, f"{found:.6g}, with {peak // 1000} kB in memory")
