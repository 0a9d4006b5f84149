"""Names of the user's variables for the values of an ATen graph.

Dynamo names a node after the local variable that first stores its value. AOTAutograd records for
each ATen op the Dynamo node that it belongs to. Among the ops of one Dynamo node, the variable is
the one value used outside, by other nodes or as a result. If several are used outside, none gets
the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph
from torch.fx import Node as FxNode

_ATEN = torch.ops.aten
_RESHAPES = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default)


def variable_names(graph: Graph) -> dict[FxNode, str]:
    """Returns the variable name of each node whose value, possibly reshaped, is assigned to one."""
    origins: dict[FxNode | None, Any] = {node: _origin(node) for node in graph.nodes}
    parts: dict[tuple[str, str], list[FxNode]] = {}
    for node, origin in origins.items():
        if node is not None and origin is not None and origin[0] != origin[1]:
            parts.setdefault(origin, []).append(node)
    found: dict[FxNode, str] = {}
    for origin, nodes in parts.items():
        left = [n for n in nodes if _is_tensor(n) and _leaves(n, origin, origins)]
        if len(left) == 1:
            value: FxNode | None = left[0]
            while value is not None:
                found[value] = origin[0]
                value = _reshaped(value)
                value = value if origins.get(value) == origin else None
    return found


def _origin(node: FxNode) -> tuple[str, str] | None:
    """Returns Dynamo's name of the node this op belongs to, and its name without a variable."""
    sources: list[Any] = node.meta.get("from_node") or []
    made: list[tuple[str, Any]] = node.meta.get("source_fn_stack") or []
    if not sources or not made:
        return None
    source = sources[-1]
    while source.from_node:
        source = source.from_node[-1]
    return source.name, made[-1][0]


def _leaves(node: FxNode, origin: Any, origins: Mapping[FxNode | None, Any]) -> bool:
    """True if the graph returns a node's value, or an op of another Dynamo node reads it.

    Ops of derivatives have no origin and do not count.
    """
    users = [u for u in node.users if u.op == "output" or origins.get(u) is not None]
    return any(origins.get(u) != origin for u in users)


def _reshaped(node: FxNode) -> FxNode | None:
    return node.all_input_nodes[0] if node.target in _RESHAPES else None


def _is_tensor(node: FxNode) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
