"""Empty caches, so that every system compiles from the same state."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

# environment variables of every folder where a system caches compiled code
CACHES = (
    *("STACK_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"),
    *("JAX_COMPILATION_CACHE_DIR", "TVM_CACHE_DIR"),
)


def empty_caches(folder: str) -> dict[str, str]:
    """Returns an environment in which every compiler uses an empty cache folder.

    Python's bytecode cache is kept, as after an installation.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return environment | {name: str(Path(folder, name.lower())) for name in CACHES}


@contextmanager
def fresh_caches() -> Generator[None]:
    """Provides empty caches for one system that compiles in this process."""
    with ExitStack() as held:
        # ignore cleanup errors: files may still be loaded from the folder
        folder = held.enter_context(
            tempfile.TemporaryDirectory(prefix="stack-fresh-", ignore_cleanup_errors=True)
        )
        if "torch" in sys.modules:
            # Inductor also has an in-memory cache, which `fresh_cache` clears
            private: Any = importlib.import_module("stack.frameworks.torch_private")
            held.enter_context(private.inductor_caches(dir=folder, delete=False))
        held.callback(_restore, dict(os.environ))
        os.environ.update(empty_caches(folder))
        yield


def _restore(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
