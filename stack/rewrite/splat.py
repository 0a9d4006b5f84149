"""Detects values whose elements are all one number."""

from __future__ import annotations

from typing import Any

import numpy as np

from stack.ir.data import Data
from stack.ir.node import Node
from stack.ir.ops import is_whole_view


def splat(node: Node) -> Any:
    """The value of a constant whose elements are all equal, through broadcasts; else None."""
    while is_whole_view(node):
        node = node.args[0]
    if node.op != "const":
        return None
    data: Data = node.attrs["value"]
    if not data.size:
        return None
    flat = data.array.reshape(-1)
    if data.size > 1 and not bool(np.all(flat == flat[0])):
        return None
    return flat[0].item()
