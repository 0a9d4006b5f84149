"""Graphs as JSON for Google's Model Explorer: modules are namespaces, which it opens and closes.

The format is that of `model_explorer.graph_builder` (package ai-edge-model-explorer).
"""

from __future__ import annotations

import json
from typing import Any

from stack.report.viewed_graph import ViewedGraph, ViewedNode


def model_explorer_text(graph: ViewedGraph) -> str:
    """Returns the document of one graph."""
    made = {"id": graph.name, "nodes": [_node(node) for node in graph.nodes]}
    return json.dumps({"graphs": [made]}, indent=1) + "\n"


def _node(node: ViewedNode) -> dict[str, Any]:
    edges = [
        {
            "sourceNodeId": edge.source,
            "sourceNodeOutputId": str(edge.result),
            "targetNodeInputId": str(number),
        }
        for number, edge in enumerate(node.inputs)
    ]
    results = [
        {"id": str(number), "attrs": [{"key": "tensor_shape", "value": type_}]}
        for number, type_ in enumerate(node.results)
    ]
    return {
        "id": node.id,
        "label": node.id,
        "namespace": "/".join(node.module),
        "attrs": [{"key": key, "value": value} for key, value in node.attrs],
        "incomingEdges": edges,
        "outputsMetadata": results,
    }
