"""Finding frontends, backends, passes and hosted operators: by entry point, never by import."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from stack.errors import unknown_name

GROUPS = (
    *("stack.frontends", "stack.backends", "stack.passes", "stack.ops"),
    "stack.partitioners",
)


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def names(group: str) -> list[str]:
    """Everything installed in a group, sorted."""
    return sorted(_points(group))


@cache
def load(group: str, name: str) -> Any:
    """Import one plugin. Raises UsageError with the known names."""
    points = _points(group)
    if name not in points:
        kind = group.removeprefix("stack.").removesuffix("es" if group.endswith("passes") else "s")
        raise unknown_name(f"no {kind}", name, points)
    return points[name].load()
