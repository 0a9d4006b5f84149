"""What FX graphs say of their values: where they come from, and their examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree


def before(outputs: Iterable[Any]) -> set[Node]:
    """The nodes that outputs are computed from."""
    found: set[Node] = set()
    pending = [n for n in outputs if isinstance(n, Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def forward_pass(graph: Graph, num_fwd_outputs: int) -> tuple[list[Any], set[Node]]:
    """The results of the forward pass of a joint graph, and the nodes they are computed from."""
    outputs = pytree.tree_leaves(graph.output_node().args)[:num_fwd_outputs]
    return outputs, before(outputs)


def example_of(node: Any) -> torch.Tensor | None:
    """The example of a node, where all its sizes are numbers."""
    found = node.meta.get("val") if isinstance(node, Node) else None
    if isinstance(found, torch.Tensor) and all(isinstance(s, int) for s in found.shape):
        return found
    return None
