"""Stream rows that are also results of the block, such as a sum with a residual.

A loop that writes rows writes such a value with them, so no other kernel reads the rows again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stack.ir.node import Node
from stack.passes.streaming.graph import Graph, keeps_its_value
from stack.passes.streaming.region import Region


def multi_outputs(
    graph: Graph, region: Region, finishing: Collection[Node], outputs: Sequence[Node]
) -> list[Node]:
    """Returns values to write with `outputs`: results of the block that depend on no state.

    `finishing` is computed after the loop. Operands of the stream must not depend on these values.
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
