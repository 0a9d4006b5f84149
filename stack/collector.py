"""Pauses Python's cyclic garbage collector while a program is compiled.

A full collection visits every object of every loaded framework. It takes longer than tracing a
transformer block and frees almost nothing, because the objects that tracing and passes create are
still in use.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


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
