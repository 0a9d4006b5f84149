"""Long sweeps of parameters: a spread of them runs always, all of them in `make sweep`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def in_turn(first: Iterable[Any], *others: Sequence[Any]) -> list[Any]:
    """All combinations, of which each value of the first runs always with one, in turn."""
    combined = list(product(*others))
    return [
        _param((value, *rest), slow=place != number % len(combined))
        for number, value in enumerate(first)
        for place, rest in enumerate(combined)
    ]


def _param(case: Any, slow: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow) if slow else pytest.param(*values)
