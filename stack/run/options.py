"""The options of a compilation: their names, and the machine that they select.

An unknown option is an error that suggests the closest name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stack.errors import UsageError, unknown_name
from stack.run.backend import Backend
from stack.target import Gpu, Target, load, names
from stack.target.files import as_gpu
from stack.target.record import kind_of

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


def target_of(backend: Backend, options: Mapping[str, Any]) -> Target | None:
    """The target of a backend; None for peers, which compile for the machine that they detect.

    Options:
        target: a name, or a file; by default this machine.
        shared: True if other kernels run on the GPU meanwhile (see `Gpu.shared`).

    Raises:
        UsageError: there is no such target, or it is not of the backend's kind.
    """
    asked = options.get("target")
    if backend.machine.at_hand is None:
        if asked:
            raise UsageError(f"{backend.name} compiles for the machine it runs on: no target")
        return None
    target = load(str(asked)) if asked else backend.machine.at_hand(options)
    kind = backend.machine.kind
    if asked and kind_of(target) != kind:
        known = [n for n in names() if kind_of(load(n)) == kind]
        raise UsageError(
            f"target {target.name!r} is a {kind_of(target).upper()}, and {backend.name} prints for"
            f" {kind.upper()}s: {', '.join(known)}, or a file of one"
        )
    if isinstance(target, Gpu) and options.get("shared"):
        return replace(target, shared=True)
    return target


def balance_of(backend: Backend, options: Mapping[str, Any]) -> float:
    """Returns the matmul operations that the target GPU computes in the time of one byte of memory
    traffic, if the backend recomputes matmuls that are only reduced; else 0.
    """
    if not backend.lowering.recomputes:
        return 0.0
    return as_gpu(target_of(backend, options)).balance
