"""Hands the record of each compilation to those who collect them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from stack.run.record import Run

_OPEN: list[list[Run]] = []


@contextmanager
def recording() -> Generator[list[Run]]:
    """Collects the records of all compilations inside, oldest first."""
    records: list[Run] = []
    _OPEN.append(records)
    try:
        yield records
    finally:
        _OPEN[:] = [other for other in _OPEN if other is not records]


def announce(run: Run) -> None:
    """Adds the record of a compiled graph to every `recording()` that is open."""
    for records in _OPEN:
        records.append(run)
