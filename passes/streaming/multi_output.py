"""Values of the rows of a stream that are results of the block too, such as a sum with a residual.

A pass that writes rows has such a value at hand: it is written with them, and needs no kernel that
reads the rows once more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stack.ir.node import Node
from stack.passes.streaming.graph import Graph, keeps_its_value
from stack.passes.streaming.region import Region


def multi_outputs(
    graph: Graph, region: Region, finishing: Collection[Node], outputs: Sequence[Node]
) -> list[Node]:
    """The values to write with `outputs`, which are results of the block and read no state.

    `finishing` is computed after the pass. What the stream reads must not wait for its results.
    """
    made = {v.node for v in region.visited if region.passes(v)}
    read = {v.node for v in region.visited}.union(*(n.args for n in finishing))
    read -= made.union(finishing, region.members)
    shapes = {n.shape for n in outputs}
    return [
        v.node
        for v in sorted(region.visited, key=lambda v: graph.place.get(v.node, -1))
        if v.node in graph.results
        and v.node.shape in shapes
        and v.streams
        and keeps_its_value(v.node)
        and region.passes(v)
        and not region.depends(v)
        and graph.after((v.node,)).isdisjoint(read)
    ]


__all__ = ["multi_outputs"]
