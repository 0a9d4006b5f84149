"""Threads that compile in the background, as LLVM does not take the GIL.

They are kept, because MLIR loads data per thread. A forked child has none of them, and a lock that
one of them held would stay locked there. So a fork waits until they are idle, and a child starts
its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from . import threads

Made = TypeVar("Made")

_started: list[ThreadPoolExecutor] = []  # for this process: empty until the first submit
_under_way: set[Future[Any]] = set()


def submit(make: Callable[..., Made], *args: Any) -> Future[Made]:
    """Run `make` with the arguments on another thread, and return its future."""
    if not _started:
        _started.append(ThreadPoolExecutor(threads.cores(), "stack-mlir"))
    try:
        made = _started[0].submit(make, *args)
    except RuntimeError:  # Python is shutting down and starts no threads
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
