"""Cuts a Dynamo graph into parts, in program order.

Modes that the graph sets for later ops, gradients and autocast, are set again in each part.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from stack.frameworks.torch_private import ENTER_AUTOCAST, EXIT_AUTOCAST, MODES, SET_GRAD


@dataclass(frozen=True)
class Part:
    """A part as a graph of its own.

    Attributes:
        nodes: its nodes in the whole graph, without those that set modes.
        inputs: nodes of the whole graph that it reads, one for each of its placeholders.
        outputs: nodes of the whole graph that later parts or the program read, as its results.
    """

    graph: GraphModule
    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Node]


def graph_parts(gm: GraphModule, chosen: Container[Node]) -> list[Part]:
    """Cuts a graph into parts that consist only of `chosen` nodes or only of others, in order."""
    parts: list[Part] = []
    entered = _Modes(torch.is_grad_enabled(), ())
    modes, nodes = entered, list[Node]()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        real = [n for n in nodes if n.target not in MODES]
        if node.target in MODES:
            modes = modes.after(node)
        elif real and (node in chosen) is not (real[0] in chosen):
            parts.append(_part(gm, nodes, entered))
            entered, nodes = modes, []
        nodes.append(node)
    if any(n.target not in MODES for n in nodes):
        parts.append(_part(gm, nodes, entered))
    return parts


@dataclass(frozen=True)
class _Modes:
    """The modes at a point of a graph: gradients, and the nodes that entered autocast."""

    grad: bool
    autocasts: tuple[Node, ...]

    def after(self, node: Node) -> _Modes:
        """Returns the modes after a node that sets gradients, or enters or leaves autocast."""
        if node.target is SET_GRAD:
            return _Modes(bool(node.args[0]), self.autocasts)
        if node.target is ENTER_AUTOCAST:
            return _Modes(self.grad, (*self.autocasts, node))
        return _Modes(self.grad, tuple(n for n in self.autocasts if n is not node.args[0]))


def _part(gm: GraphModule, nodes: list[Node], entered: _Modes) -> Part:
    own = {n for n in nodes if n.target not in MODES}
    read = [a for n in nodes if n in own for a in n.all_input_nodes if a not in own]
    inputs = list(dict.fromkeys(a for a in read if a.op != "get_attr"))
    outputs = [n for n in nodes if n in own and any(u not in own for u in n.users)]
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in inputs:
        made[node] = graph.placeholder(node.name)
        made[node].meta = {**node.meta}
    for node in dict.fromkeys(a for a in read if a.op == "get_attr"):
        made[node] = graph.node_copy(node)
    before = torch.is_grad_enabled()
    if entered.grad is not before:
        graph.call_function(SET_GRAD, (entered.grad,))
    for node in entered.autocasts:
        made[node] = graph.node_copy(node, made.__getitem__)
    modes = entered
    for node in nodes:
        if node.target in MODES:
            modes = modes.after(node)
        made[node] = graph.node_copy(node, made.__getitem__)
    for node in reversed(modes.autocasts):
        graph.call_function(EXIT_AUTOCAST, (made[node],))
    if modes.grad is not before:
        graph.call_function(SET_GRAD, (before,))
    results: Any = tuple(made[n] for n in outputs)
    graph.output(results)
    return Part(GraphModule(gm, graph), [n for n in nodes if n in own], inputs, outputs)
