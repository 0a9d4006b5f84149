"""Prologue fusion: a single dot, one operand of which is computed from much smaller values.

In the loop, that operand never goes through memory. Decays exp(a_i - a_j) of many heads, times one
table of scores, are such an operand.
"""

from __future__ import annotations

from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.passes.streaming.region import Region
from stack.passes.streaming.terms import TermValue

EXPANDS = 4  # elements of the operand, relative to those that it is computed from


def fuses_prologue(region: Region, sink: Node) -> bool:
    """True if the sink is a single dot, one operand of which is computed from much less data."""
    if not is_contraction(sink) or len(region.members) > 1:
        return False
    return any(_is_prologue(region, sink, operand) for operand in region.operands[sink])


def _is_prologue(region: Region, sink: Node, operand: TermValue) -> bool:
    """True if an operand of the dot `sink` is computed from much smaller arrays, and its values of
    full size are read by nothing else."""
    pending, seen = [operand], set[TermValue]()
    read: set[Node] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if region.passes(value):
            pending.extend(region.operand_values(value))
        else:
            read.add(value.node)
    size = elements(operand.node)
    inside = {v.node for v in seen if v.node not in read} | {sink}
    large = [n for n in inside if elements(n) == size and n is not sink]
    is_small = 0 < EXPANDS * sum(map(elements, read)) <= size
    return is_small and all(u in inside for n in large for u in region.graph.users[n])


def elements(node: Node) -> int:
    """Returns the size of a value; 0 if it is symbolic."""
    size = node.tensor.size
    return size if isinstance(size, int) else 0
