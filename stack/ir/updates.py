"""Scatters that update whole rows: each index selects a row of operand 0."""

from __future__ import annotations

from typing import NamedTuple

from stack.ir.axes import parse_rule
from stack.ir.node import Node


class IndexedRows(NamedTuple):
    """The rows that a `scatter` updates: the axis of operand 0 that is indexed, and the permutation
    that brings the axes of the updates into the order of operand 0.
    """

    axis: int
    perm: tuple[int, ...]


def updated_rows(node: Node) -> IndexedRows | None:
    """The rows that a `scatter` with one indexed axis updates; None if it does not update whole
    rows.
    """
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
    return IndexedRows(axis, tuple(given.index(n) for n in order))
