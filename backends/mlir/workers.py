"""Threads that compile beside the calling one, where LLVM takes no lock of Python's.

They stay, as what MLIR loads for a thread does. A child of a fork has none of them, and a lock
that one of them held would stay taken there: a fork waits for what they do, a child has its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from . import threads

Made = TypeVar("Made")

_started: list[ThreadPoolExecutor] = []  # of this process: none before something is submitted
_under_way: set[Future[Any]] = set()


def submit(make: Callable[..., Made], *args: Any) -> Future[Made]:
    """What `make` gives of the arguments, from another thread."""
    if not _started:
        _started.append(ThreadPoolExecutor(threads.cores(), "stack-mlir"))
    try:
        made = _started[0].submit(make, *args)
    except RuntimeError:  # Python is about to end, and starts no threads
        return _made_here(make, *args)
    _under_way.add(made)
    made.add_done_callback(_under_way.discard)
    return made


def _made_here(make: Callable[..., Made], *args: Any) -> Future[Made]:
    made: Future[Made] = Future()
    try:
        made.set_result(make(*args))
    except Exception as error:
        made.set_exception(error)
    return made


def _before_fork() -> None:
    wait(tuple(_under_way))


def _after_fork() -> None:
    _started.clear()
    _under_way.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
