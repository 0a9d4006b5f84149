"""Graphs in the language of Graphviz, which Netron opens too: modules are nested clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stack.report.viewed_graph import ViewedGraph, ViewedNode


@dataclass
class _Cluster:
    """The nodes of a module, and its inner modules by name."""

    nodes: list[ViewedNode] = field(default_factory=list[ViewedNode])
    inner: dict[str, _Cluster] = field(default_factory=dict[str, "_Cluster"])


def dot_text(graph: ViewedGraph) -> str:
    """Returns a directed graph: a box for each node, the type of each value on its edges."""
    root = _Cluster()
    for node in graph.nodes:
        cluster = root
        for name in node.module:
            cluster = cluster.inner.setdefault(name, _Cluster())
        cluster.nodes.append(node)
    lines = [
        f"digraph {quoted(graph.name)} {{",
        '  node [shape=box, fontname="monospace", fontsize=10];',
        '  edge [fontname="monospace", fontsize=9];',
        *_cluster_lines(root, (), 1),
    ]
    for node in graph.nodes:
        lines += [
            f"  {quoted(edge.source)} -> {quoted(node.id)} [label={quoted(edge.type)}];"
            for edge in node.inputs
        ]
    return "\n".join([*lines, "}", ""])


def _cluster_lines(cluster: _Cluster, path: tuple[str, ...], depth: int) -> Iterator[str]:
    """Yields the nodes of a module, then its inner modules as subgraphs."""
    space = "  " * depth
    for node in cluster.nodes:
        tip = "\n".join(f"{key}: {value}" for key, value in node.attrs)
        yield f"{space}{quoted(node.id)} [tooltip={quoted(tip)}];"
    for name, inner in cluster.inner.items():
        yield f"{space}subgraph {quoted('cluster_' + '.'.join((*path, name)))} {{"
        yield f"{space}  label={quoted(name)};"
        yield from _cluster_lines(inner, (*path, name), depth + 1)
        yield f"{space}}}"


def quoted(text: str) -> str:
    """Returns a text as a quoted string of the language; line breaks become `\\n`.

    Quotes become single ones, since Netron reads no escaped quotes.
    """
    escaped = text.replace("\\", "\\\\").replace('"', "'").replace("\n", "\\n")
    return f'"{escaped}"'
