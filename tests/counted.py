"""Work counted in calls: the same on a machine that is busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def calls_of(step: Callable[[], T]) -> tuple[T, int]:
    """The result of a step, and the number of its calls, of Python and of C."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        result = step()
    finally:
        sys.setprofile(before)
    return result, count
