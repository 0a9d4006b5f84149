"""The schedules that were considered for a kernel, from a saved run."""

from __future__ import annotations

from typing import Any

from stack.errors import UsageError, unknown_name
from stack.explore.saved import SavedRun

Row = dict[str, Any]
HEADINGS = ("schedule", "expected", "measured", "why")


def choice_of(run: SavedRun, kernel: str) -> Row:
    """What was considered for a kernel or group, by its name: the last stage that chose says it.

    Raises:
        UsageError: nothing of that name had a choice; names those that had.
    """
    found = {c["group"]: c for s in run.manifest["stages"] for c in s.get("choices", ())}
    names = {kernel.removeprefix("%")}
    names |= {k["stage_node"].removeprefix("%") for k in run.kernels if k["name"] == kernel}
    for name in names:
        if name in found:
            return found[name]
    if any(k["name"] == kernel for k in run.kernels):
        had = ", ".join(f"%{name}" for name in found) or "none"
        raise UsageError(f"{kernel} had one schedule, by rule; a choice of several had: {had}")
    raise unknown_name(f"{run.folder} has no schedules for", kernel, found)


def rows(choice: Row) -> list[list[str]]:
    """Cells of a table: schedule, time expected, time measured, why it is not the one."""
    first = choice["schedules"][0]
    return [
        [c["schedule"], _time(c, "expected"), _time(c, "measured"), _why(c, first, choice["by"])]
        for c in choice["schedules"]
    ]


def _time(held: Row, key: str) -> str:
    return f"{held[key] * 1e6:.1f} us" if key in held else "-"


def _why(held: Row, first: Row, by: str) -> str:
    if held is first:
        return {"hand": "taken: written by hand", "policy": "taken"}.get(by, "taken: the fastest")
    for key in ("why", "problem"):
        if key in held:
            return str(held[key])
    for key in ("measured", "expected"):
        if key in held and key in first:
            factor = held[key] / first[key]
            return f"{factor:.2f}x the time of the first{_bound(held.get('parts', {}))}"
    return "no model of its time: the first is the policy's, tuning measures the others"


def _bound(parts: dict[str, float]) -> str:
    """What takes longest of it."""
    if not parts:
        return ""
    name = max(parts, key=lambda part: parts[part])
    return f", {name} takes {parts[name] * 1e6:.1f} us"
