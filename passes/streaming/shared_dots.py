"""Dots that end in reductions over both of their axes: each stream may recompute them."""

from __future__ import annotations

from collections.abc import Iterable

from stack.ir.node import Node
from stack.ir.traits import reads_by_data
from stack.passes.streaming.graph import Graph, moves, reduced_value
from stack.passes.streaming.region import Region
from stack.passes.streaming.terms import Refusal


def dots_of(graph: Graph, sink: Node) -> frozenset[Node]:
    """Returns the dots that a stream which ends in the reduction `sink` could compute tile by tile;
    empty if there is no such stream."""
    found = reduced_value(sink)
    if found is None:
        return frozenset()
    region = Region(graph, found[0], frozenset(), frozenset())
    try:
        region.add(sink)
    except Refusal:
        return frozenset()
    return frozenset(region.dots)


def ends(graph: Graph, dots: Iterable[Node]) -> list[Node] | None:
    """Returns the reductions that read dots, directly or through elementwise ops.

    None if another op or a result of the block needs such a value.
    """
    found: set[Node] = set()
    pending, seen = list(dots), set(dots)
    while pending:
        node = pending.pop()
        if node in graph.results:
            return None
        for user in graph.users.get(node, ()):
            if user in seen:
                continue
            seen.add(user)
            if reduced_value(user) is not None and not reads_by_data(user):
                found.add(user)
            elif moves(user):
                pending.append(user)
            else:
                return None
    return sorted(found, key=lambda n: graph.place[n])
