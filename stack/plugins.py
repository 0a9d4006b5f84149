"""Finds frontends, backends, passes and hosted operators by entry point, never by import."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from stack.errors import UsageError, unknown_name
from stack.imports import import_named

GROUPS = (
    *("stack.frontends", "stack.backends", "stack.passes", "stack.ops"),
    *("stack.partitioners", "stack.formats"),
)
FILES = "STACK_PLUGINS"  # paths of files that declare operators
_ADDED: dict[str, dict[str, Any]] = {}  # by group and name: what this process registered


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def register(group: str, name: str, plugin: Any) -> None:
    """Makes a plugin known to this process, as an entry point makes it known to all.

    Raises UsageError if another plugin has the name.
    """
    held = _ADDED.setdefault(group, {})
    other = held.get(name)
    again = other is not None and _place(other) == _place(plugin)  # the same file, read again
    if not again and (other is not None or name in _points(group)):
        raise UsageError(f"the name {name!r} is taken among {group}")
    held[name] = plugin
    load.cache_clear()


def _place(plugin: Any) -> tuple[str, str]:
    return str(getattr(plugin, "__module__", "")), str(getattr(plugin, "__qualname__", plugin))


def names(group: str) -> list[str]:
    """All names installed in a group, sorted."""
    return sorted({*_points(group), *_ADDED.get(group, ())})


@cache
def load(group: str, name: str) -> Any:
    """Import one plugin. Raises UsageError with the known names."""
    added = _ADDED.get(group, {})
    if name in added:
        return added[name]
    points = _points(group)
    if name not in points:
        kind = group.removeprefix("stack.").removesuffix("es" if group.endswith("passes") else "s")
        see = f"stackc {group.removeprefix('stack.')}"
        raise unknown_name(f"no {kind}", name, names(group), see=see)
    return points[name].load()


def call_if_loaded(group: str, name: str, *args: Any) -> None:
    """Calls a plugin if its module was imported already; imports nothing."""
    point = _points(group).get(name)
    if point is not None and point.module in sys.modules:
        point.load()(*args)


def add_file(path: str) -> None:
    """Runs a file that declares operators, here and in child processes."""
    held = [p for p in os.environ.get(FILES, "").split(os.pathsep) if p]
    os.environ[FILES] = os.pathsep.join([*held, str(Path(path).resolve())])
    load_files()


def load_files() -> None:
    """Runs the files of `add_file` that were not run in this process yet."""
    for path in os.environ.get(FILES, "").split(os.pathsep):
        if path:
            _load_file(path)


@cache
def _load_file(path: str) -> None:
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path} to declare operators ({FILES}, --plugin)")
    import_named(path)
