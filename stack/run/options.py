"""Checks options by name. An unknown option is an error that suggests the closest name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stack.errors import UsageError, unknown_name
from stack.run.backend import Backend

GRAPH = ("backend", "passes", "strict", "label")  # of one compiled graph
OWN = (*GRAPH, "dynamic", "frontend")  # of `stack.compile`
# passed by compiled programs to backends
INTERNAL = ("bound", "call_opaque", "meanwhile", "weights")


def of_graph(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options of `stack.compile` to keyword arguments of `CompiledGraph`: its own, and the
    backend's in `options`.
    """
    own = {k: v for k, v in options.items() if k in GRAPH}
    return {**own, "options": {k: v for k, v in options.items() if k not in GRAPH}}


def check_options(backend: Backend, options: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that the backend does not take."""
    if backend.options is None:
        return
    for name in options:
        if name in OWN:
            raise UsageError(f"{name!r} is an option of stack.compile, and cannot be given here")
        if name not in (*backend.options, *INTERNAL):
            known = (*OWN, *backend.options)
            raise unknown_name(
                f"neither stack.compile nor {backend.name} has an option", name, known
            )
