"""Python's cyclic garbage collector, held back while a program is compiled.

A full collection looks at every object of every framework that is loaded. It takes longer than
tracing a transformer block, and finds next to nothing: what tracing and passes make is in use.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def held_back() -> Generator[None]:
    """No collection inside; a collector that is off already stays off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
