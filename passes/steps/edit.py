"""Rewrites of kernels that keep the names and source lines of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from stack.ir.node import Block, Node, is_op_name, topological
from stack.ir.traits import is_item, is_loop
from stack.passes.steps.loops import axis_of
from stack.passes.tiling.frame import Names, names_of

# from a node, and the node with its new operands and blocks: the replacement, or one of each of its
# results; None for the node with its new operands
Visit = Callable[[Node, Node], Node | list[Node] | None]


class Edit:
    """Rewrites a kernel: builds replacements of nodes and transfers names and source lines to them.

    Attributes:
        kernel: the kernel before the rewrite.
        block: its body.
    """

    def __init__(self, kernel: Node) -> None:
        self.kernel = kernel
        self.block = kernel.blocks[0]
        self._called = {n: name for n, name in self.block.names.items() if not is_op_name(n, name)}
        self._lines = dict(self.block.locs)

    @cached_property
    def names(self) -> Names:
        """Generates names for new variables."""
        return names_of(self.block)

    def note(self, old: Node, new: Node) -> Node:
        """Records that `new` replaces `old`: it gets the name and the source lines of `old`."""
        if new is not old:
            if old in self._called:
                self._called.setdefault(new, self._called[old])
            if old in self._lines:
                self._lines.setdefault(new, self._lines[old])
        return new

    def locate(self, old: Node, new: Node) -> Node:
        """Gives `new` the source lines of `old`, but not its name."""
        if old in self._lines:
            self._lines.setdefault(new, self._lines[old])
        return new

    def values(
        self,
        roots: Sequence[Node],
        known: Mapping[Node, Node],
        within: Block | None = None,
        visit: Visit | None = None,
    ) -> list[Node]:
        """Rebuilds values with some nodes replaced. Returns what replaces each value.

        Args:
            roots: the values.
            known: replacements of some nodes.
            within: the only block in which they are replaced. Values from outside stay, even if
                they are results of loops over the same variable, whose bodies share nodes.
            visit: returns the replacement of a rebuilt node.
        """
        for old, new in known.items():
            self.note(old, new)
        outside = within.captures if within is not None else ()
        done = {**dict(zip(outside, outside, strict=True)), **known}
        self._rewrite(topological(roots, known=done), visit or (lambda _, made: None), done)
        return [done.get(root, root) for root in roots]

    def body(
        self, block: Block, known: Mapping[Node, Node], params: Sequence[Node] | None = None
    ) -> Block:
        """Rebuilds the body of a loop with some of its nodes replaced. `params`: its new
        parameters, if `known` replaces some of them by others.
        """
        return Block(params or block.params, self.values(block.results, known, block))

    def everywhere(self, visit: Visit) -> Node:
        """Rewrites each node of the kernel, operands first. Returns the kernel."""
        return self.finished(self.rewritten(self.block, visit).results)

    def rewritten(
        self, block: Block, visit: Visit, outer: Mapping[Node, Node] | None = None
    ) -> Block:
        """Rewrites each node of a block, as `everywhere` does, except those that `outer` replaces.

        Two loops may share a variable. If that of the loop outside is replaced, that of the block
        is not: nodes that depend on it mean another value inside.
        """
        done = dict(outer or {})
        renamed = {p for p in block.params if done.get(p, p) is not p}
        if renamed:
            done = {old: new for old, new in done.items() if renamed.isdisjoint(old.vars)}
        nodes: Iterable[Node] = block.nodes
        if not done.keys().isdisjoint(nodes):
            nodes = topological(block.results, known=done, over=frozenset(block.params))
        self._rewrite(nodes, visit, done)
        results = tuple([done.get(r, r) for r in block.results])
        return block if results == block.results else Block(block.params, results)

    def _rewrite(self, nodes: Iterable[Node], visit: Visit, done: dict[Node, Node]) -> None:
        """Rewrites nodes, operands first. Adds to `done` what replaces them."""
        parts: dict[Node, list[Node]] = {}
        for node in nodes:
            if parts and is_item(node) and node.args[0] in parts:
                done[node] = parts[node.args[0]][int(node.attrs["index"])]
                continue
            blocks = [self.rewritten(b, visit, done) for b in node.blocks]
            rebuilt = node.rebuilt([done.get(a, a) for a in node.args], blocks=blocks)
            made = visit(node, rebuilt) or rebuilt
            if isinstance(made, list) and len(made) != 1:
                parts[node] = made
                continue
            new = made if isinstance(made, Node) else made[0]
            if new is not node:
                done[node] = self.note(node, new)

    def finished(self, results: Sequence[Node]) -> Node:
        """Returns the rewritten kernel: `results` replace the results of its body."""
        made = Block(self.block.params, results, self._called, self._lines)
        return self.kernel.rebuilt(blocks=[made])

    def change_loops(self, axis: str, change: Visit) -> Node:
        """Rewrites each loop over an axis, inner loops first. Returns the kernel."""

        def visit(old: Node, made: Node) -> Node | list[Node] | None:
            return change(old, made) if is_loop(old) and axis_of(old) == axis else None

        return self.everywhere(visit)
