from __future__ import annotations

from typing import Any

import numpy as np

from stack.ops.scan.associative import check_associative, sequential


def check_associative_function(student: Any) -> None:
    """softmax_state is associative"""
    check_associative(student.softmax_state, 2)


def check_softmax(student: Any) -> None:
    """a scan with softmax_state ends in the sum of the whole softmax"""
    scores = np.random.default_rng(6).standard_normal(40) * 30
    m, l = sequential(student.softmax_state, (scores, np.ones(40)))
    assert m[-1] == scores.max()
    assert np.isclose(l[-1], np.exp(scores - scores.max()).sum())


def check_tiled(student: Any) -> None:
    """tiled agrees with the loop, for tiles of 1, of some, and of all"""
    rng = np.random.default_rng(7)
    a, x = rng.uniform(-1, 1, 24), rng.standard_normal(24)
    wanted, h = [], 0.0
    for gate, value in zip(a, x, strict=True):
        h = gate * h + value
        wanted.append(h)
    for tile in (1, 6, 24):
        assert np.allclose(student.tiled(a, x, tile), wanted), f"tiles of {tile}"
