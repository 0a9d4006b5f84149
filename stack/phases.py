"""Measures compilation time by phase, in seconds, and counts no second twice.

The first phase that begins starts a clock, and phases inside it report to that clock. The time of a
phase excludes the phases nested in it. Each thread has its own clock.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    phases: list[str] = field(default_factory=list[str])
    since: float = 0.0

    def lap(self) -> None:
        """Adds the time since the last call to the innermost open phase; drops it if no phase is
        open.
        """
        now = time.perf_counter()
        if self.phases:
            name = self.phases[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self.since
        self.since = now


_CLOCK: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@contextmanager
def phase(name: str) -> Generator[None]:
    """Context manager or decorator: adds the time inside to phase `name` of the running clock, or
    of a new clock if none runs.
    """
    clock = _CLOCK.get()
    token = None
    if clock is None:
        token = _CLOCK.set(clock := _Clock())
    clock.lap()
    clock.phases.append(name)
    try:
        yield
    finally:
        clock.lap()
        clock.phases.pop()
        if token is not None:
            _CLOCK.reset(token)


def phases_now() -> Mapping[str, float]:
    """Returns the seconds per phase on the running clock, updated live; empty if no clock runs."""
    clock = _CLOCK.get()
    return clock.seconds if clock is not None else {}
