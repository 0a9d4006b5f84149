"""A dataflow graph as viewers show it: nodes in nested modules, edges with types."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edge:
    """A value that a node reads: the id of the node that computes it, the number of the value among
    that node's results, and its type.
    """

    source: str
    result: int
    type: str


@dataclass(frozen=True)
class ViewedNode:
    """A node: `id` is what viewers show, `module` the path of its module, outermost first."""

    id: str
    module: tuple[str, ...]
    attrs: tuple[tuple[str, str], ...]
    inputs: tuple[Edge, ...]
    results: tuple[str, ...] = ()  # types


@dataclass(frozen=True)
class ViewedGraph:
    """A graph; operands come before the nodes that read them."""

    name: str
    nodes: tuple[ViewedNode, ...]
