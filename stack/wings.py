"""Finds the wings: parts beside the core. Each may be missing or broken; the core works without.

A wing registers one module, its door, as an entry point of group `stack.wings`, and its commands in
group `stack.commands`. The core calls what the door offers, and imports nothing else of a wing.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import stack.plugins as plugins
from stack.errors import WingMissing

GROUP = "stack.wings"
COMMANDS = "stack.commands"


@dataclass(frozen=True)
class Wing:
    """A wing of this distribution: what it adds, and the names of its commands."""

    what: str
    commands: tuple[str, ...] = ()


WINGS = {
    "bench": Wing("timing beside other compilers", ("bench", "compare")),
    "course": Wing("lessons and exercises, `python -m stack.demos.course`"),
    "files": Wing("programs in files of other tools: ONNX, StableHLO"),
    "mesh": Wing("programs that are split over a mesh of ranks"),
    "ops": Wing("hosted operators, with kernels written by hand"),
    "report": Wing("runs as web pages and in notebooks", ("live", "report")),
    "rules": Wing("counterexamples for rewrite rules", ("check-rule",)),
}


def wing(name: str) -> ModuleType:
    """The door of a wing. Raises WingMissing, which says why and how to get the wing."""
    reason = missing(name)
    if reason is not None:
        raise WingMissing(name, WINGS[name].what, reason)
    return plugins.load(GROUP, name)


def missing(name: str) -> str | None:
    """The reason why a wing cannot be used; None if it can. Loads it."""
    if name not in plugins.names(GROUP):
        return "it is not installed"
    try:
        plugins.load(GROUP, name)
    except Exception as error:  # whatever a broken wing raises, the core goes on
        return f"it cannot be imported: {type(error).__name__}: {error}"
    return None


def commands() -> list[ModuleType]:
    """The modules of commands that wings and other packages add, without those that are broken."""
    found: list[ModuleType] = []
    for name in plugins.names(COMMANDS):
        try:
            found.append(plugins.load(COMMANDS, name))
        except Exception:
            continue
    return found
