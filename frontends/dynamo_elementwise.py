"""Elementwise values of a training step that the backward pass computes again, by bytes.

Torch's partitioner keeps what a reduction of the backward pass reads, such as the exponentials of a
softmax over a vocabulary. Where such a value is no smaller than what it is computed from, keeping
that instead costs less: its source is in memory anyway, or takes fewer bytes.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from stack.frontends.fx_values import example_of, forward_pass

aten = torch.ops.aten
VIEWS = frozenset({
    aten.view, aten._unsafe_view, aten.reshape, aten.expand, aten.squeeze, aten.unsqueeze,
    aten.detach, aten.alias, aten.clone, aten._to_copy,
})  # fmt: skip
FOLDS = frozenset({
    aten.amax, aten.amin, aten.sum, aten.mean, aten.any, aten.gather, aten.select,
})  # fmt: skip
MADE = frozenset({aten.arange, aten.full, aten.zeros, aten.ones, torch.ops.prims.iota})
LIKE = frozenset({aten.zeros_like, aten.ones_like, aten.full_like})  # read a shape, no elements
LEAST = 1 << 20  # bytes: smaller values may stay
MOST = 1.1  # of a value's bytes: what its sources may take, statistics of rows among them


def rebuilt(graph: Graph, num_fwd_outputs: int) -> list[Node]:
    """The elementwise values of the forward pass that are not worth keeping."""
    outputs, forward = forward_pass(graph, num_fwd_outputs)
    sources: dict[Node, frozenset[Node]] = {}
    for node in graph.nodes:
        if node in forward and is_elementwise(node):
            found = [sources.get(a, frozenset({a})) for a in node.all_input_nodes]
            sources[node] = frozenset[Node]().union(*found)
    return [
        node
        for node, read in sources.items()
        if node not in outputs
        and _bytes(node) >= LEAST
        and sum(map(_bytes, read)) <= MOST * _bytes(node)
        and all(u in sources or _is_read_along(u) or is_elementwise(u) for u in node.users)
    ]


def of_positions(graph: Graph, num_fwd_outputs: int) -> list[Node]:
    """The values of the forward pass that are made of no input: they cost no memory to read.

    Kept, a table of positions is data to the backward pass; computed there, it is known.
    """
    outputs, forward = forward_pass(graph, num_fwd_outputs)
    found: dict[Node, None] = {}
    for node in graph.nodes:
        known = all(a in found for a in node.all_input_nodes)
        if node in forward and known and (is_elementwise(node) or _is_made(node)):
            found[node] = None
    return [n for n in found if n not in outputs]


def _is_made(node: Node) -> bool:
    return getattr(node.target, "overloadpacket", None) in MADE


def _bytes(node: Node) -> int:
    """Bytes of a node's value; none where its size is not a number."""
    value = example_of(node)
    return 0 if value is None else value.numel() * value.element_size()


def is_elementwise(node: Node) -> bool:
    """Whether each element of a node comes from one of each of its operands."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return target.overloadpacket in VIEWS or torch.Tag.pointwise in target.tags


def _is_read_along(node: Node) -> bool:
    """Whether a node reduces its operand, or does not read its elements."""
    return getattr(node.target, "overloadpacket", None) in FOLDS | LIKE
