"""Bodies of control flow, for passes that work on one block at a time."""

from __future__ import annotations

from collections.abc import Callable

from stack.ir.node import Block, Node
from stack.ir.traits import is_control
from stack.rewrite.engine import Replacement


def changed_bodies(block: Block, change: Callable[[Block], Block]) -> dict[Node, Replacement]:
    """Replacements for branches, loops and calls of a block whose bodies `change` changes."""
    changed: dict[Node, Replacement] = {}
    for node in block.nodes:
        if is_control(node):
            blocks = [change(b) for b in node.blocks]
            if tuple(blocks) != node.blocks:
                new = Node(node.op, node.args, node.attrs, node.type, blocks)
                changed[node] = Replacement(new)
    return changed
