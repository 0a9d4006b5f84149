"""The MLIR Python bindings, from any source; nothing else in the library imports them.

Upstream calls them `mlir`. PyPI has the same bindings, with all core dialects, as `torch_mlir`.
That is a namespace package, so finding the name proves little. The needed parts are imported, and
any failure counts as missing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import threading
from types import ModuleType
from typing import Any, NamedTuple

from stack.releases import install_hint

PACKAGES = ("mlir", "torch_mlir")
DISTRIBUTIONS = {"mlir": ("mlir-python-bindings", "mlir"), "torch_mlir": ("torch-mlir",)}


class Bindings(NamedTuple):
    """The parts of MLIR that the backend uses."""

    package: str
    ir: ModuleType
    passmanager: ModuleType
    execution_engine: ModuleType


@functools.cache
def bindings() -> Bindings:
    """Returns the bindings; raises BackendMissing that names the extra if there are none."""
    why: list[str] = []
    for package in PACKAGES:
        try:
            parts = [
                importlib.import_module(f"{package}.{part}")
                for part in ("ir", "passmanager", "execution_engine")
            ]
        except (ImportError, OSError) as error:
            why.append(str(error))
            continue
        return Bindings(package, *parts)
    from stack.errors import BackendMissing

    raise BackendMissing("mlir", f"{install_hint('mlir')} ({'; '.join(why)})")


@functools.cache
def version() -> str:
    """Package and version, without importing the bindings; a part of every cache key."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        for name in DISTRIBUTIONS[package]:
            try:
                return f"{package} {importlib.metadata.version(name)}"
            except importlib.metadata.PackageNotFoundError:
                continue
        return package
    return "none"


_own = threading.local()


def context() -> Any:
    """Returns this thread's MLIR context.

    Loading the dialects again would cost 4 ms per kernel, and MLIR translates without the GIL.
    """
    if not hasattr(_own, "context"):
        _own.context = bindings().ir.Context()
        # MLIR's own worker threads would only take cores from measurements
        _own.context.enable_multithreading(False)
    return _own.context
