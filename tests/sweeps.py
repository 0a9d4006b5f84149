"""Long sweeps of parameters: a spread of them runs always, all of them in `make sweep`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Marks all but every `step`-th case as slow; the first case is kept.

    A step that has no divisor in common with the length of each factor of a product keeps every
    value of every factor.
    """
    return [_param(case, slow=number % step != 0) for number, case in enumerate(cases)]


def _param(case: Any, slow: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow) if slow else pytest.param(*values)
