"""Selects the machine that a program is lowered for: by options, or the one at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stack.errors import UsageError
from stack.run.backend import Backend
from stack.target import Gpu, Target, load, names
from stack.target.files import as_gpu
from stack.target.record import kind_of


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
    if not asked:
        return _shared(backend.machine.at_hand(options), options)
    found, kind = load(str(asked)), backend.machine.kind
    if kind_of(found) != kind:
        known = [n for n in names() if kind_of(load(n)) == kind]
        raise UsageError(
            f"target {found.name!r} is a {kind_of(found).upper()}, and {backend.name} prints for"
            f" {kind.upper()}s: {', '.join(known)}, or a file of one"
        )
    return _shared(found, options)


def _shared(target: Target, options: Mapping[str, Any]) -> Target:
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
