"""Base class of passes that work on one block at a time, bodies of control flow first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import is_control
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


class BlockPass(Pass):
    """A pass that changes one block at a time: bodies of loops and branches first, equal ones once.

    The inside of a fusion group is one kernel, so it is not visited.
    """

    def run(self, func: Func, log: Log) -> Func:
        return Func(func.name, self.block(func.body, log, {}), func.level)

    def block(self, block: Block, log: Log, done: dict[Block, Block]) -> Block:
        """Applies the pass to the bodies of loops, branches and calls in a block, then to the
        block. `done`: the blocks that it has changed, by the old ones."""
        if block not in done:
            changed = changed_bodies(block, lambda b: self.block(b, log, done))
            done[block] = self.change(replace(block, changed) if changed else block, log)
        return done[block]

    @abstractmethod
    def change(self, block: Block, log: Log) -> Block:
        """Returns one block after the pass; the bodies of loops, branches and calls in it are
        already changed. Subclasses implement this."""


def changed_bodies(block: Block, change: Callable[[Block], Block]) -> dict[Node, Node]:
    """Returns replacements for the branches, loops and calls whose bodies `change` changes."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        if is_control(node):
            new = node.rebuilt(blocks=[change(b) for b in node.blocks])
            if new is not node:
                changed[node] = new
    return changed
