"""Recompute values in their readers, if a group would write them for others alone.

The deviations of a norm over columns are summed by one kernel and scaled by the next. Each reads
the array and recomputes them, instead of writing and reading four bytes per element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stack.ir import ops
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.rewrite.fusion import Grouping
from stack.rewrite.group import Group, bytes_of, flops_of
from stack.rewrite.verdict import Why


def recompute_values(grouping: Grouping) -> None:
    """Recompute cheap values in their readers, if that reads fewer bytes than storing them."""
    while any(_recompute(grouping, g, v) for g in grouping.all_groups for v in g.outputs):
        pass


def _recompute(grouping: Grouping, group: Group, value: Node) -> bool:
    """Tries to recompute `value`, a result of `group`, in all groups that read it, so that `group`
    need not write it. Returns True if it did."""
    chain = _made_of(grouping, group, value)
    readers = [r for r in grouping.readers.get(value, ()) if r not in group.held]
    if not chain or any(not grouping.groups.get(r) or is_contraction(r) for r in readers):
        return False
    consumers = list(dict.fromkeys(g for r in readers for g in grouping.groups[r]))
    producer = grouping.regroup(chain)
    if isinstance(producer, Why) or not _reads_less(producer, value, consumers):
        return False
    done = grouping.copies("recompute", replace(producer, outputs=(value,)), consumers)
    for new, old in zip(done, consumers, strict=False):
        grouping.put(new, old)
    if done:
        left = tuple(o for o in group.outputs if o is not value)
        grouping.put(replace(group, outputs=left, copied=group.copied | producer.held), group)
    return bool(done)


def _made_of(grouping: Grouping, group: Group, value: Node) -> list[Node]:
    """Returns the members of a group that compute a value, if they are few elementwise operations.

    Empty if they are not, if the block returns the value, or if no member reads it.
    """
    if value in grouping.needed or not any(value in group.reach(n) for n in group.members):
        return []
    found = [value]
    for node in found:
        found += [n for n in group.reach(node) if n not in found]
    known = all(ops.lookup(n.op).kind == "elementwise" for n in found)
    cost = sum(flops_of(n) for n in found)
    return found if known and cost <= grouping.limits.recompute else []


def _reads_less(producer: Group, value: Node, consumers: Sequence[Group]) -> bool:
    """True if the groups `consumers` read fewer bytes of further operands to recompute a value than
    writing it once and reading it in each of them takes."""
    read = [v for c in consumers for v in producer.inputs if v not in c.inputs]
    return sum(map(bytes_of, read)) < bytes_of(value) * (1 + len(consumers))
