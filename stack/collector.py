"""Python's cyclic garbage collector, held back while a program is compiled.

A full collection looks at every object of every framework that is loaded. It takes longer than
tracing a transformer block, and finds next to nothing: what tracing and passes make is in use.
So what was made meanwhile counts as old, else the first collection afterwards looks at all of it.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def held_back() -> Generator[None]:
    """No collection inside, and none of what was made inside before the next full one.

    A collector that is off already stays off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # somebody's frozen objects stay so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        gc.enable()
