"""Complex inputs of a graph that are read as pairs of real numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten


def is_input_in_pairs(node: Node) -> bool:
    """True if a node is `view_as_real` of a complex input."""
    source: Any = node.args[0] if node.target is aten.view_as_real.default else None
    while isinstance(source, Node) and source.target is aten.resolve_conj.default:
        source = source.args[0]
    return isinstance(source, Node) and source.op == "placeholder"
