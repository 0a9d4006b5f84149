"""Values that a stream computes after its loop: of its states, and what only these values read."""

from __future__ import annotations

from collections.abc import Collection, Container
from heapq import heapify, heappop, heappush

from stack.ir.node import Node, is_inline
from stack.passes.streaming.finish_axes import FinishAxes
from stack.passes.streaming.graph import Graph, finishes
from stack.passes.streaming.region import MAX_VALUES, Region
from stack.rewrite.group import bytes_of


def finishing_nodes(
    region: Region, after: Container[Node], virtual: frozenset[Node], axes: FinishAxes
) -> set[Node]:
    """Returns nodes that can be computed from the states after the loop; adds their axes.

    Args:
        region: the collected region of the stream.
        after: the nodes computed from its states.
        virtual: values that stay out of memory, so that nothing reads them after the loop.
        axes: the axes of the states.
    """
    graph, members = region.graph, region.members
    finishing: set[Node] = set()
    pending = [graph.place[u] for m in members for u in graph.users.get(m, ())]
    heapify(pending)
    while pending and len(finishing) < MAX_VALUES:
        node = graph.order[heappop(pending)]
        if node in finishing or node in members:
            continue
        if not (finishes(node) or axes.regroups(node)):
            continue
        if all(
            a in finishing or a in members or (a not in after and a not in virtual)
            for a in node.args
        ):
            finishing.add(node)
            axes.add(node)
            for user in graph.users.get(node, ()):
                heappush(pending, graph.place[user])
    return finishing


def producers(region: Region, finishing: Collection[Node]) -> set[Node]:
    """Returns values that only `finishing` reads, and that cost less to compute after the loop than
    to write and read, such as rows that are added to the stream's own."""
    graph = region.graph
    inside = {v.node for v in region.visited}
    found: set[Node] = set()
    pending = sorted(finishing, key=graph.place.__getitem__)
    while pending and len(found) + len(finishing) < MAX_VALUES:
        for arg in pending.pop().args:
            if arg in found or arg in finishing or arg in inside or arg in region.members:
                continue
            if not _is_producer(graph, arg) or arg in graph.results:
                continue
            if all(u in finishing or u in found for u in graph.users[arg]):
                found.add(arg)
                pending.append(arg)
    return found


def _is_producer(graph: Graph, node: Node) -> bool:
    """True if a value is computed element by element from values that are cheaper to read than the
    value is to write and read."""
    if not node.args or not finishes(node):
        return False
    return sum(bytes_of(a) for a in node.args if not is_inline(a)) <= 2 * bytes_of(node)
