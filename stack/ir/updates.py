"""Scatters that update whole rows: every index names a row of operand 0."""

from __future__ import annotations

from typing import NamedTuple

from stack.ir.axes import parse_rule
from stack.ir.node import Node


class Rows(NamedTuple):
    """Which axis of operand 0 is indexed, and the updates' axes with the index's in its place."""

    axis: int
    perm: tuple[int, ...]


def updated_rows(node: Node) -> Rows | None:
    """What rows a `scatter` with one indexed axis updates; None where it does not update rows."""
    rule = parse_rule(node.attrs["rule"])
    marked = [i for i, a in enumerate(rule.inputs[0]) if a.mark == "!"]
    if len(marked) != 1:
        return None
    (axis,) = marked
    target, index, given = ([a.names[0] for a in operand] for operand in rule.inputs)
    rest = [name for i, name in enumerate(target) if i != axis]
    if not set(rest).isdisjoint(index) or set(given) != {*rest, *index}:
        return None
    order = (*rest[:axis], *index, *rest[axis:])
    return Rows(axis, tuple(given.index(n) for n in order))
