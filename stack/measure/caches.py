"""Empty caches: every system compiles from the same state."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

# every place where one of the systems keeps what it compiled
CACHES = (
    *("STACK_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"),
    *("JAX_COMPILATION_CACHE_DIR", "TVM_CACHE_DIR"),
)


def empty_caches(folder: str) -> dict[str, str]:
    """An environment in which every compiler keeps what it makes in an empty folder.

    Python's bytecode is no cache of a compiler: it is used and kept, as after an installation.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return environment | {name: str(Path(folder, name.lower())) for name in CACHES}


@contextmanager
def fresh_caches() -> Generator[None]:
    """Empty caches for what one system compiles in this process."""
    with ExitStack() as held:
        # the folder stays while something may still be loaded from it
        folder = held.enter_context(
            tempfile.TemporaryDirectory(prefix="stack-fresh-", ignore_cleanup_errors=True)
        )
        if "torch" in sys.modules:
            # Inductor keeps what it compiled in memory too, and knows how to forget it
            inductor: Any = importlib.import_module("torch._inductor.utils")
            held.enter_context(inductor.fresh_cache(dir=folder, delete=False))
        held.enter_context(mock.patch.dict(os.environ, empty_caches(folder)))
        yield
