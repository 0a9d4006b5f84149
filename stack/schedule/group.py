"""Schedules on groups: the attribute `schedule` of a fusion, a stream or a kernel.

It is one text or several, best first: the first is used, the others are for tuning to try.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.node import Node
from stack.schedule.record import Schedule


def schedules_of(node: Node) -> tuple[str, ...]:
    """Returns the texts of the schedules that a fusion group has as attribute, best first; empty if
    it has none.
    """
    named = node.attrs.get("schedule") or ()
    return (named,) if isinstance(named, str) else tuple(named)


def first_schedule(node: Node) -> Schedule | None:
    """Returns the best schedule of a fusion group; None if it has none. Raises UsageError if its
    text cannot be parsed.
    """
    named = schedules_of(node)
    return Schedule.parse(named[0]) if named else None


def with_schedules(node: Node, texts: Sequence[str]) -> Node:
    """The group with these schedules in place of its own; an empty list removes them."""
    attrs = {k: v for k, v in node.attrs.items() if k != "schedule"}
    if texts:
        attrs["schedule"] = texts[0] if len(texts) == 1 else tuple(texts)
    return Node(node.op, node.args, attrs, node.type, node.blocks)
