"""The thread pool that kernels share: a small native pool, compiled from MLIR text like kernels.

OpenMP divides work into equal parts with a barrier, which is as slow as its slowest thread. On a
machine with other work, each kernel then waits for a whole time slice of the scheduler. Here every
thread takes chunks of the remaining work, smaller towards the end, and nobody waits for a thread
without a chunk. So a descheduled thread delays only one chunk. If no other thread gets a core, a
kernel runs on the calling thread alone.

Idle threads spin for some microseconds, so that the next kernel of a program starts at once. Then
they sleep in the kernel, to leave the cores to other programs. Torch's OpenMP threads spin longer
after each of torch's loops. While they do, they take the chunks (`team_text`), and none of our
threads competes.

The native code starts threads itself, when a kernel first needs them, and never takes the GIL: a
worker never runs Python.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import TYPE_CHECKING

from . import elf, portable_pool, threads
from .pool_text import SIZE, SLOTS, text

if TYPE_CHECKING:
    from stack.run.cache import Cache


class Pool:
    """The native pool of this process."""

    def __init__(self, image: elf.Image) -> None:
        self.address = image.addresses[threads.SYMBOL]
        # never freed: workers run this code until the process ends, even after Python has shut down
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
        """Adopt torch's number of threads, once torch is loaded."""
        if self.follows and not self.state[SLOTS["ask"]] and "torch" in sys.modules:
            # torch.set_num_threads sets OpenMP's number. Native calls read it from there in a few
            # nanoseconds, so that a change applies to the next kernel.
            self.state[SLOTS["ask"]] = threads.openmp("omp_get_max_threads")
            self.state[SLOTS["number"]] = number = threads.openmp("omp_get_thread_num")
            self.state[SLOTS["enter"]] = number and self.enters and threads.openmp("GOMP_parallel")

    def _forked(self) -> None:
        """Reset the state in a forked child. It has no threads; the next kernel starts new ones."""
        state = self.state
        generation = (state[SLOTS["ticket"]] >> 32) + 1
        # nobody runs a job that another thread of the parent had in progress
        state[SLOTS["ticket"]] = ctypes.c_int64(generation << 32).value
        for name in ("pending", "waiting", "sleepers", "busy", "started", "arrived", "enter"):
            state[SLOTS[name]] = 0
        # a region would wait forever for OpenMP threads that the child does not have
        self.enters = "torch" not in sys.modules


_lock = threading.Lock()
_pools: list[Pool | None] = []  # for this process: empty until a kernel needs it


def pool(cache: Cache | None = None) -> Pool | None:
    """The native pool, or None on machines that only have the portable one."""
    from . import jit

    with _lock:
        if not _pools:
            names, found = [threads.SYMBOL, "stack_pool_state"], None
            if elf.IS_SUPPORTED:
                image = jit.build(text(), names, cache)[threads.SYMBOL].owner
                # if the image cannot be loaded, the engine's kernels call the portable pool
                found = Pool(image) if isinstance(image, elf.Image) else None
            _pools.append(found)
        found = _pools[0]
    if found is not None:
        found.refresh()
    return found


def ahead(cache: Cache | None) -> None:
    """Compile the pool in the background, while kernels are compiled that need it to be loaded."""
    if not _pools and threads.cores() > 1:  # with one core it would not be concurrent
        threads.submit(pool, cache)


def address(cache: Cache | None = None) -> int:
    """The address of the function that kernels call to share iterations; see `threads.entry`."""
    found = pool(cache)
    if found is not None:
        return found.address
    return ctypes.cast(portable_pool.dispatch, ctypes.c_void_p).value or 0
