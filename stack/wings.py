"""Finds the wings: parts beside the core. Each may be missing or broken; the core works without.

A wing registers one module, its door, as an entry point of group `stack.wings`. The core calls what
the door offers, and imports nothing else of a wing.
"""

from __future__ import annotations

from types import ModuleType

import stack.plugins as plugins
from stack.errors import WingMissing

GROUP = "stack.wings"
WINGS = {
    "report": "runs as web pages and in notebooks",
}


def wing(name: str) -> ModuleType:
    """The door of a wing. Raises WingMissing, which says why and how to get the wing."""
    reason = missing(name)
    if reason is not None:
        raise WingMissing(name, WINGS[name], reason)
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
