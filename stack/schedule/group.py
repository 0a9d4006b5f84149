"""Schedules on groups: the attribute `schedule` of a fusion, a stream or a kernel.

One text, or several, best first: the first is taken, the others are what tuning may try.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.node import Node
from stack.schedule.record import Schedule


def schedules_of(node: Node) -> tuple[str, ...]:
    """The texts of the schedules that a group names, best first."""
    named = node.attrs.get("schedule") or ()
    return (named,) if isinstance(named, str) else tuple(named)


def first_schedule(node: Node) -> Schedule | None:
    """The schedule that a group is to follow; None where none is named. Raises UsageError."""
    named = schedules_of(node)
    return Schedule.parse(named[0]) if named else None


def with_schedules(node: Node, texts: Sequence[str]) -> Node:
    """The group with these schedules; none of them takes away those that it has."""
    attrs = {k: v for k, v in node.attrs.items() if k != "schedule"}
    if texts:
        attrs["schedule"] = texts[0] if len(texts) == 1 else tuple(texts)
    return Node(node.op, node.args, attrs, node.type, node.blocks)
