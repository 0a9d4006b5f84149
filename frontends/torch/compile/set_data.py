"""Removes `x.data = y` if `y` already is the memory of `x`, as in `module.to(dtype)`."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from stack.frameworks.torch_private import GET_DATA


def drop_own_memory(gm: GraphModule) -> None:
    """Remove assignments in a Dynamo graph that give a tensor the memory that it already has."""
    made: dict[int, Node] = {}  # a conversion without effect returns its operand
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            made.setdefault(id(value), node)

    def origin(node: Any) -> Any:
        return made.get(id(node.meta.get("example_value"))) if isinstance(node, Node) else None

    dropped = False
    for node in gm.graph.find_nodes(op="call_function", target=torch.Tensor.set_):
        if len(node.args) != 2 or node.kwargs:
            continue
        given, source = map(origin, node.args)
        while source is not None and source.target in (GET_DATA, "detach"):
            source = origin(source.args[0])
        if given is None or source is not given or any(u.users for u in node.users):
            continue
        for user in list(node.users):  # it restores the tensor's version counter
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
        dropped = True
    if dropped:
        gm.recompile()
