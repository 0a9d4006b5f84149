"""The number of processors that this process may use."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """Returns the number of processors that the scheduler may give this process.

    macOS and Windows do not report it, so there it is the machine's number of processors.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
