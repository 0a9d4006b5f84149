"""Where the time of a compilation goes: seconds by phase, none of them counted twice.

The first phase that begins starts a clock, which every phase inside of it tells its time; a phase
has what no phase inside of it has. Each thread has a clock of its own.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.phases: list[str] = []
        self.since = 0.0

    def lap(self) -> None:
        """What went by since the last lap is the innermost phase's."""
        now = time.perf_counter()
        if self.phases:
            name = self.phases[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self.since
        self.since = now


_CLOCK: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@contextmanager
def phase(name: str) -> Generator[None]:
    """What is done inside belongs to this phase. A decorator too."""
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
    """The seconds of phases on the clock that is running, which go on; none where none is."""
    clock = _CLOCK.get()
    return clock.seconds if clock is not None else {}
