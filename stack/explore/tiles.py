"""The schedules that were considered for a kernel, from a saved run."""

from __future__ import annotations

from typing import Any

from stack.errors import UsageError, unknown_name
from stack.explore.saved_run import SavedRun

Row = dict[str, Any]
HEADINGS = ("schedule", "expected", "measured", "why")


def choice_of(run: SavedRun, kernel: str) -> Row:
    """Returns the recorded candidate schedules of a kernel or group, and which one was picked.

    If several stages chose a schedule, returns the candidates of the last one.

    Raises:
        UsageError: no stage chose among schedules for this name; lists the names with a choice.
    """
    found = {c["group"]: c for s in run.manifest["stages"] for c in s.get("choices", ())}
    names = {kernel.removeprefix("%")}
    names |= {k["stage_node"].removeprefix("%") for k in run.kernels if k["name"] == kernel}
    for name in names:
        if name in found:
            return found[name]
    if any(k["name"] == kernel for k in run.kernels):
        had = ", ".join(f"%{name}" for name in found) or "none"
        raise UsageError(f"{kernel} had one schedule, by rule; kernels with a choice: {had}")
    names = dict.fromkeys([*found, *(k["name"] for k in run.kernels)])
    raise unknown_name(f"{run.folder} has no kernel", kernel, [*names])


def rows(choice: Row) -> list[list[str]]:
    """Returns a table row for each candidate schedule of a kernel.

    Its cells: the schedule, expected time, measured time, and why it was or was not picked.
    """
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
    return "its time is not modeled: the policy picked the first, tuning measures the others"


def _bound(parts: dict[str, float]) -> str:
    """Formats the largest part of a schedule's expected time; "" if the parts are unknown."""
    if not parts:
        return ""
    name = max(parts, key=lambda part: parts[part])
    return f", {name} takes {parts[name] * 1e6:.1f} us"
