"""Room for the frames of Python's calls, for work that calls deeply and returns often.

CPython keeps frames in chunks of 16 KiB, maps one when a call crosses the end of the last, and
unmaps it when that call returns. Where a loop of calls happens to lie across an end, each of them
costs both and a page fault: up to a fifth of a compilation. A frame that a chunk cannot hold gets
one of up to twice the bytes that it takes: what it leaves over is for the frames after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")

# What a frame claims, and leaves to others: as many as Python lets call one another.
_WORDS = 1 << 16

# Values that wait for each other on Python's stack; what is behind more of them goes on a list.
NESTED = 16


def with_room(fn: Callable[Given, Made]) -> Callable[Given, Made]:
    """Decorator: what is called inside has its frames in one chunk. No memory is touched for it."""

    def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        return fn(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=_WORDS)
    return wraps(fn)(call)
