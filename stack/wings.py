"""Finds the wings: parts beside the core. Each may be missing or broken; the core works without.

A wing registers one module, its door, as an entry point of group `stack.wings`, and its commands in
group `stack.commands`. What it adds to a frontend or a backend is an object in group `stack.parts`.
The core calls what the door and the parts offer, and imports nothing else of a wing.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import stack.plugins as plugins
from stack.errors import WingMissing

GROUP = "stack.wings"
PARTS = "stack.parts"
COMMANDS = "stack.commands"


@dataclass(frozen=True)
class Wing:
    """A wing of this distribution: what it adds, and the names of its commands."""

    what: str
    commands: tuple[str, ...] = ()


WINGS = {
    "bench": Wing(
        "timing, schedules by timing, other compilers", ("bench", "calibrate", "compare")
    ),
    "calls": Wing("calls of compiled programs from PyTorch and JAX"),
    "complex": Wing("complex numbers in programs"),
    "course": Wing("lessons and exercises, `python -m stack.demos.course`"),
    "faults": Wing("the first wrong pass, the first nan", ("bisect", "reduce", "repro")),
    "files": Wing("programs in files of other tools: ONNX, StableHLO"),
    "functions": Wing("torch functions as simpler ones, pooling, search"),
    "mesh": Wing("programs that are split over a mesh of ranks"),
    "naming": Wing("names of what kernels compute"),
    "ops": Wing("hosted operators, with kernels written by hand"),
    "report": Wing("runs as web pages, in notebooks and as drawings", ("live", "report")),
    "testing": Wing("tests for authors of passes", ("check-rule", "new", "watch")),
}


def wing(name: str) -> ModuleType:
    """The door of a wing. Raises WingMissing, which says why and how to get the wing."""
    return part(name, name, GROUP)


def missing(name: str) -> str | None:
    """The reason why a wing cannot be used; None if it can. Loads it."""
    return _found(GROUP, name)[1]


def part(name: str, object_name: str, group: str = PARTS) -> Any:
    """An object that a wing adds to a frontend or a backend. Raises WingMissing, as `wing`."""
    found, why = _found(group, object_name)
    if why is not None:
        raise WingMissing(name, WINGS[name].what, why)
    return found


def part_if_here(object_name: str) -> Any | None:
    """An object that a wing adds to a frontend or a backend; None without the wing."""
    return _found(PARTS, object_name)[0]


def call_if_here(object_name: str, *args: Any) -> Any | None:
    """Calls what a wing adds to a frontend or a backend, and returns its result; None without the
    wing.
    """
    found, _ = _found(PARTS, object_name)
    return None if found is None else found(*args)


def _found(group: str, name: str) -> tuple[Any, str | None]:
    """Loads an object of a wing. Returns it, or None and the reason why it cannot be used."""
    if name not in plugins.names(group):
        return None, "it is not installed"
    try:
        return plugins.load(group, name), None
    except Exception as error:  # whatever a broken wing raises, the core goes on
        return None, f"it cannot be imported: {type(error).__name__}: {error}"


def commands() -> list[ModuleType]:
    """The modules of commands that wings and other packages add, without those that are broken."""
    found: list[ModuleType] = []
    for name in plugins.names(COMMANDS):
        try:
            found.append(plugins.load(COMMANDS, name))
        except Exception:
            continue
    return found
