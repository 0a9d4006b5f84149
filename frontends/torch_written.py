"""Replaces torch functions by our decompositions before autograd sees them."""

from __future__ import annotations

from torch.fx import GraphModule

from stack.frontends import (
    torch_attention,
    torch_bags,
    torch_diagonal,
    torch_encoder,
    torch_flex,
    torch_losses,
    torch_recurrent,
)

# by function, or by name of a tensor method
WRITTEN = (
    torch_attention.WRITTEN
    | torch_bags.WRITTEN
    | torch_diagonal.WRITTEN
    | torch_encoder.WRITTEN
    | torch_flex.WRITTEN
    | torch_losses.WRITTEN
    | torch_recurrent.WRITTEN
)


def write_out(graph: GraphModule) -> None:
    """Replace the functions in `WRITTEN` in a graph that Dynamo captured, and in nested graphs."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            _write_out(module)


def _write_out(module: GraphModule) -> None:
    calls = [
        (node, written)
        for function, written in WRITTEN.items()
        for node in module.graph.find_nodes(
            op="call_method" if isinstance(function, str) else "call_function", target=function
        )
    ]
    for node, written in calls:
        node.op, node.target = "call_function", written
    if calls:
        module.recompile()
