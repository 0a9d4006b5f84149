"""Replaces torch functions by our decompositions before autograd sees them."""

from __future__ import annotations

from torch.fx import GraphModule

from stack.frontends.torch.decompositions import (
    attention,
    embedding_bag,
    fill_diagonal,
    flex_attention,
    losses,
    recurrent_layers,
    transformer_encoder,
)

# by function, or by name of a tensor method
WRITTEN = (
    attention.WRITTEN
    | embedding_bag.WRITTEN
    | fill_diagonal.WRITTEN
    | transformer_encoder.WRITTEN
    | flex_attention.WRITTEN
    | losses.WRITTEN
    | recurrent_layers.WRITTEN
)


def write_out(graph: GraphModule) -> None:
    """Replace the functions in `WRITTEN` in a graph that Dynamo captured, and in nested graphs."""
    for module in graph.modules():
        if not isinstance(module, GraphModule):
            continue
        calls = [
            n
            for n in module.graph.nodes
            if n.op in ("call_function", "call_method") and n.target in WRITTEN
        ]
        for node in calls:
            node.op, node.target = "call_function", WRITTEN[node.target]
        if calls:
            module.recompile()
