"""Costs of CPython that a compilation avoids: collections of garbage, mapping of frames.

A full collection visits every object of every loaded framework. It takes longer than tracing a
transformer block and frees almost nothing, because the objects that tracing and passes create are
still in use.

CPython keeps frames in chunks of 16 KiB. It maps a chunk when a call crosses the end of the last
one and unmaps it when that call returns. A loop of calls that happens to straddle a chunk boundary
pays for both, plus a page fault, on each call: up to a fifth of a compilation. A frame too large
for a chunk gets its own chunk of up to twice its size, and the frames after it use the rest.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")

# Stack words that the large frame claims: enough for Python's recursion limit.
_WORDS = 1 << 16


@contextmanager
def held_back() -> Generator[None]:
    """Context manager that disables Python's garbage collector and enables it again at the end. If
    the collector is disabled already, it stays disabled at the end.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def undisturbed(fn: Callable[Given, Made]) -> Callable[Given, Made]:
    """Decorator: disables Python's garbage collector during `fn`, and reserves one chunk of stack
    memory that holds the frames of all calls inside `fn`, so that no call maps a new chunk. The
    memory is reserved without being written.
    """

    def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        is_on = gc.isenabled()
        gc.disable()
        try:
            return fn(*args, **kwargs)
        finally:
            if is_on:
                gc.enable()

    call.__code__ = call.__code__.replace(co_stacksize=_WORDS)
    return wraps(fn)(call)
