"""Ranges in the profilers of frameworks: a named span for each step of a program that runs.

A framework registers a source, which returns None while its profiler does not record. A program
queries all sources once per call, and runs step by step if one of them records.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

OpenRange = Callable[[str], AbstractContextManager[Any]]
Source = Callable[[], OpenRange | None]

_SOURCES: dict[str, Source] = {}


def register(framework: str, source: Source) -> None:
    """Adds the profiler of a framework. `source` returns the function that opens a range in it, or
    None while it does not record.
    """
    _SOURCES[framework] = source


def recording() -> OpenRange | None:
    """Returns the function that opens a range in each profiler that records now; None if none
    does.
    """
    found = [opened for source in _SOURCES.values() if (opened := source()) is not None]
    if len(found) <= 1:
        return found[0] if found else None

    @contextmanager
    def in_each(name: str) -> Generator[None]:
        with ExitStack() as stack:
            for opened in found:
                stack.enter_context(opened(name))
            yield

    return in_each


def range_name(name: str, modules: tuple[str, ...], source: tuple[str, ...]) -> str:
    """Returns the name of a kernel's range: `stack::dot_add [layers.0.wq] block.py:42,43`."""
    inside = [f"[{', '.join(modules)}]"] if modules else []
    lines, last = list[str](), ""
    for line in source:
        file, _, number = line.rpartition(":")
        lines.append(number if file == last else line)
        last = file
    return " ".join([f"stack::{name}", *inside, ",".join(lines)]).rstrip()
