"""Python threads that share a kernel's iterations, for machines without the native pool.

The native pool (`pool`) needs Linux on x86-64. Elsewhere, kernels call `dispatch`, which splits the
iterations into chunks and runs them on a `ThreadPoolExecutor`. A call through ctypes releases the
GIL, so the chunks run concurrently. Dispatching a kernel costs about 50 us, against 2 us with the
native pool.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from . import threads

PIECES = 4  # chunks per thread, so that a delayed thread delays only a small part of the work

_Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_Dispatch = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

_lock = threading.Lock()
_executors: list[ThreadPoolExecutor] = []  # for this process: empty until a kernel needs it


def thread_limit() -> int:
    """Number of threads of a kernel: STACK_NUM_THREADS, or torch's number, or that of cores."""
    torch = sys.modules.get("torch")
    return threads.chosen() or (torch.get_num_threads() if torch is not None else threads.cores())


def ranges(count: int, grain: int, limit: int) -> list[tuple[int, int]]:
    """Splits [0, count) into chunks [lo, hi) of at least `grain` iterations for `limit` threads."""
    if limit < 2 or count <= grain:
        return [(0, count)]
    size = max(grain, -(-count // (limit * PIECES)), 1)
    return [(lo, min(lo + size, count)) for lo in range(0, count, size)]


@_Dispatch
def dispatch(body: int, table: int, count: int, grain: int) -> None:
    """Runs a kernel's body over [0, count); returns when it is done."""
    run = _Body(body)
    limit = thread_limit()
    pieces = ranges(count, grain, limit)
    if len(pieces) == 1 or not _lock.acquire(blocking=False):  # another kernel has the threads
        run(table, 0, count)
        return
    try:
        if not _executors:
            _executors.append(ThreadPoolExecutor(threads.cores(), "stack-kernel"))
        queue = deque(pieces)
        helpers = _submitted(min(limit, len(pieces)) - 1, run, table, queue)
        _take(run, table, queue)
        wait(helpers)
    finally:
        _lock.release()


def _submitted(count: int, *job: Any) -> list[Future[None]]:
    """Submits a job to other threads; to none if Python is shutting down and starts no threads."""
    try:
        return [_executors[0].submit(_take, *job) for _ in range(count)]
    except RuntimeError:
        return []


def _take(run: Callable[[int, int, int], None], table: int, queue: deque[tuple[int, int]]) -> None:
    """Runs chunks until none is left. `popleft` is atomic, so each is run once."""
    while True:
        try:
            lo, hi = queue.popleft()
        except IndexError:
            return
        run(table, lo, hi)


def _after_fork() -> None:
    """Resets a forked child, which has no threads, and may have inherited a locked lock."""
    global _lock
    _lock = threading.Lock()
    _executors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
