"""The MLIR Python bindings, wherever they come from; nothing else in the library imports them.

Upstream names them `mlir`. PyPI carries the same bindings, with all core dialects, as
`torch_mlir`, a namespace package, so that finding the name proves little: the part that is
needed is imported and any failure counts as missing.
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
    """What the backend uses of MLIR."""

    package: str
    ir: ModuleType
    passmanager: ModuleType
    execution_engine: ModuleType


@functools.cache
def bindings() -> Bindings:
    """The bindings; raises BackendMissing that names the extra when there are none."""
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
    """Package and version, found without importing the bindings: part of every cache key."""
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
    """One context for each thread: loading the dialects again would cost 4 ms a kernel, and MLIR
    translates without Python's lock."""
    if not hasattr(_own, "context"):
        _own.context = bindings().ir.Context()
        # The text is ours; MLIR's own worker threads would only take cores from the measurements.
        _own.context.enable_multithreading(False)
    return _own.context
