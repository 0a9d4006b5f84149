"""The threads that kernels share: a small pool of our own, compiled from MLIR text like they are.

OpenMP's way of sharing work, equal parts and a barrier, is as slow as its slowest thread: on a
machine with other work each kernel then waits for a whole time slice of the scheduler. Here every
thread takes pieces of what is left, smaller towards the end, and nobody waits for a thread that
holds no piece. So a thread that the system has put aside delays one piece, and a kernel runs to
its end on the calling thread alone where no other gets a core.

Idle threads spin for some microseconds, which makes the next kernel of a program start at once,
and then sleep in the kernel, so that other programs have the cores. Torch's OpenMP threads spin
longer after each of torch's loops; while they do, they take the pieces (`team_text`), and no thread
of ours competes with them.

The native part starts threads itself, when a kernel first needs them, and takes no lock of
Python's: a worker never runs Python.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import TYPE_CHECKING

from . import elf, portable_pool, threads, workers
from .pool_text import SIZE, SLOTS, text

if TYPE_CHECKING:
    from stack.run.cache import Cache


class Pool:
    """The native pool of this process."""

    def __init__(self, image: elf.Image) -> None:
        self.address = image.addresses[threads.SYMBOL]
        # Never freed: workers sit in this code until the process ends, past Python's own end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(image.memory))
        where = (ctypes.c_int64 * 1)()
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(image.addresses["stack_pool_state"])
        kernel(ctypes.addressof(where))
        self.state = (ctypes.c_int64 * SIZE).from_address(where[0])
        self.enters = True
        self.limit(None)
        os.register_at_fork(after_in_child=self._forked)

    def limit(self, count: int | None) -> None:
        """Use at most `count` threads; None for the default, see `threads.count`."""
        wanted = threads.chosen() if count is None else count
        self.follows = wanted is None
        self.state[SLOTS["ask"]] = 0
        self.state[SLOTS["limit"]] = threads.cores() if wanted is None else max(wanted, 1)
        self.refresh()

    def refresh(self) -> None:
        """Follow torch's number of threads, once torch is there."""
        if self.follows and not self.state[SLOTS["ask"]] and "torch" in sys.modules:
            # torch.set_num_threads sets OpenMP's number. Asking there costs a native call some
            # nanoseconds, so that a change counts for the next kernel.
            self.state[SLOTS["ask"]] = threads.openmp("omp_get_max_threads")
            self.state[SLOTS["number"]] = number = threads.openmp("omp_get_thread_num")
            self.state[SLOTS["enter"]] = number and self.enters and threads.openmp("GOMP_parallel")

    def _forked(self) -> None:
        """A child has the state, and none of the threads: the next kernel starts new ones."""
        state = self.state
        generation = (state[SLOTS["ticket"]] >> 32) + 1
        # A job that another thread of the parent had under way is nobody's now.
        state[SLOTS["ticket"]] = ctypes.c_int64(generation << 32).value
        for name in ("pending", "waiting", "sleepers", "busy", "started", "arrived", "enter"):
            state[SLOTS[name]] = 0
        # A region waits for ever for threads of OpenMP's that the child does not have.
        self.enters = "torch" not in sys.modules


_lock = threading.Lock()
_pools: list[Pool | None] = []  # of this process: none before the first kernel needs it


def pool(cache: Cache | None = None) -> Pool | None:
    """The native pool, or None on machines that have only the portable one."""
    with _lock:
        if not _pools:
            _pools.append(_load(cache) if elf.supported() else None)
        found = _pools[0]
    if found is not None:
        found.refresh()
    return found


def ahead(cache: Cache | None) -> None:
    """Have the pool compiled beside what comes first: most programs have a kernel that needs it."""
    if not _pools and threads.cores() > 1:  # one core does one thing after the other
        workers.submit(pool, cache)


def address(cache: Cache | None = None) -> int:
    """The function that kernels call to share their iterations, see `threads.entry`."""
    found = pool(cache)
    if found is not None:
        return found.address
    return ctypes.cast(portable_pool.dispatch, ctypes.c_void_p).value or 0


def _load(cache: Cache | None) -> Pool | None:
    from . import jit

    image = jit.build(text(), [threads.SYMBOL, "stack_pool_state"], cache).owner
    # Where no code of ours may run, the engine's kernels call the portable pool.
    return Pool(image) if isinstance(image, elf.Image) else None
