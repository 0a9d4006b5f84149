"""Copies loop nests with some values replaced."""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.builder import Builder
from stack.ir.node import Block, Node
from stack.ir.traits import is_loop
from stack.passes.tiling.loops import carry


class NestCopy:
    """Copies some nodes of a kernel's body, with some values replaced; each node is copied once.

    Args:
        b: the builder of the copy.
        old: the kernel's block, for names and source lines.
        swap: maps old values, such as loop indices, to new ones.
        indices: maps index variables of loops to new ones whose extent or name differs.
    """

    def __init__(
        self, b: Builder, old: Block, swap: Mapping[Node, Node], indices: Mapping[Node, Node]
    ) -> None:
        self.b = b
        self.old = old
        self.done = dict(swap)
        self.indices = indices

    def new(self, node: Node) -> Node:
        """Returns the copy of a node and of all nodes that it depends on. Parallel loops become
        serial.
        """
        if node not in self.done:
            made = self._make(node)
            carry(self.b, self.old, node, made)
            self.done[node] = made
        return self.done[node]

    def _make(self, node: Node) -> Node:
        args = [self.new(a) for a in node.args]
        attrs = node.attrs
        if is_loop(node) and attrs["kind"] == "parallel":
            attrs = {**attrs, "kind": "serial"}
        blocks = [
            Block([self.indices.get(p, p) for p in b.params], [self.new(r) for r in b.results])
            for b in node.blocks
        ]
        return Node(node.op, args, attrs, node.type, blocks)
