from __future__ import annotations

from typing import Any

import numpy as np

State = tuple[float, float, np.ndarray]
NOTHING: State = (-np.inf, 0.0, np.zeros(3))


def _state(scores: np.ndarray, values: np.ndarray) -> State:
    top = scores.max()
    weights = np.exp(scores - top)
    return top, weights.sum(), weights @ values


def _agree(found: State, wanted: State) -> None:
    for have, want in zip(found, wanted, strict=True):
        assert np.allclose(have, want, rtol=1e-9), f"{have} is not {want}"


def _row() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal(32) * 50, rng.standard_normal((32, 3))


def check_merge(student: Any) -> None:
    """merge of two parts is the state of the whole row, whichever is larger"""
    scores, values = _row()
    parts = _state(scores[:9], values[:9]), _state(scores[9:], values[9:])
    _agree(student.merge(*parts), _state(scores, values))
    _agree(student.merge(*reversed(parts)), _state(scores, values))


def check_nothing(student: Any) -> None:
    """a part without scores changes nothing, and makes no nan"""
    whole = _state(*_row())
    for found, wanted in (
        (student.merge(whole, NOTHING), whole),
        (student.merge(NOTHING, whole), whole),
        (student.merge(NOTHING, NOTHING), NOTHING),
    ):
        assert not np.isnan(found[1])
        _agree(found, wanted)


def check_variance(student: Any) -> None:
    """running_variance keeps its digits far from zero"""
    values = 1e8 + np.random.default_rng(2).standard_normal(1000)
    wanted = float(((values - values.mean()) ** 2).sum())
    found = student.running_variance(values)
    assert abs(found - wanted) < 1e-4 * wanted, f"{found} is not {wanted}"
