"""Work counted in calls: the same on a machine that is busy."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def calls_of(step: Callable[[], T]) -> tuple[T, int]:
    """The result of a step, and the number of its calls, of Python and of C.

    The garbage collector waits: it would call finalizers of what other tests have left behind.
    """
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before, collected = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(seen)
    try:
        result = step()
    finally:
        sys.setprofile(before)
        if collected:
            gc.enable()
    return result, count
