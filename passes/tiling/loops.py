"""Helpers to rebuild kernels: loops, index variables, names and source lines."""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.builder import Builder
from stack.ir.node import Block, Node
from stack.ir.traits import is_loop
from stack.ir.types import I64, TensorType, TupleType
from stack.passes.tiling.frame import static
from stack.passes.tiling.names import names_of


class KernelRebuild:
    """A kernel that is rebuilt from the block of another.

    Attributes:
        old: the block of the other kernel.
        b: the builder of the new kernel.
        names: the names that are in use.
    """

    def __init__(self, old: Block) -> None:
        self.old = old
        self.b = Builder()
        self.names = names_of(old)

    def fresh(self, hint: str) -> str:
        """Returns a unique name for a variable."""
        return self.names.numbered(hint)

    def note(self, old: Node, new: Node) -> None:
        """Gives `new`, a node of the new kernel, the name and source lines of `old`, the node that
        it replaces.
        """
        carry(self.b, self.old, old, new)


def carry(b: Builder, old: Block, source: Node, made: Node) -> None:
    """Gives the node `made` the name and source lines that `source` has in the block `old`."""
    if source in old.names:
        b.names.setdefault(made, old.names[source])
    if source in old.locs:
        b.locs.setdefault(made, old.locs[source])


def items(b: Builder, node: Node) -> list[Node]:
    """Returns the results of a node as a list: one `item` node for each if it has several, else the
    node itself.
    """
    if not isinstance(node.type, TupleType):
        return [node]
    return [b.item(node, index=i) for i in range(len(node.type.items))]


def index(name: str, extent: int) -> Node:
    """Returns a new index variable of a loop."""
    return Node("var", (), {"name": name, "extent": extent}, TensorType(I64, ()))


def extent_of(loop: Node) -> int:
    """Returns the number of iterations of a loop."""
    return static(loop.blocks[0].params[0].attrs["extent"])


def with_own_variables(block: Block) -> Block:
    """Renames loop variables of a kernel so that no two of its loops share one.

    Loops that follow each other may share variables, so that equal values in them are one node.
    What a pass records about such a node would hold for both loops.
    """
    return _Renamed(block).block


class _Renamed:
    """Renames the variables of loops that share them with an earlier loop."""

    def __init__(self, block: Block) -> None:
        self.names, self.lines = dict(block.names), dict(block.locs)
        self.own = names_of(block)
        self.seen: set[Node] = set()
        made = self._inside(block, {})
        self.block = Block(made.params, made.results, self.names, self.lines)

    def _inside(self, block: Block, outer: Mapping[Node, Node]) -> Block:
        params = [self._variable(p) for p in block.params]
        done = {**outer, **dict(zip(block.params, params, strict=True))}
        for node in block.nodes:
            blocks = [self._inside(b, done) for b in node.blocks] if is_loop(node) else node.blocks
            made = node.rebuilt([done.get(a, a) for a in node.args], blocks=blocks)
            done[node] = made
            if node in self.names:
                self.names.setdefault(made, self.names[node])
            if node in self.lines:
                self.lines.setdefault(made, self.lines[node])
        return Block(params, [done.get(r, r) for r in block.results])

    def _variable(self, variable: Node) -> Node:
        if variable not in self.seen:
            self.seen.add(variable)
            return variable
        name = self.own.own(str(variable.attrs["name"]))
        made = Node("var", (), {**variable.attrs, "name": name}, variable.type)
        self.seen.add(made)
        return made
