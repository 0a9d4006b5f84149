"""Helpers to rebuild kernels: loops, index variables, names and source lines."""

from __future__ import annotations

from stack.ir.builder import Builder
from stack.ir.node import Block, Node
from stack.ir.types import I64, TensorType, TupleType
from stack.passes.tiling.frame import static
from stack.passes.tiling.names import names_of


class Rebuilt:
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
        """Give a new node the name and source lines of an old one."""
        carry(self.b, self.old, old, new)


def carry(b: Builder, old: Block, source: Node, made: Node) -> None:
    """Give a new node the name and source lines of an old one."""
    if source in old.names:
        b.names.setdefault(made, old.names[source])
    if source in old.locs:
        b.locs.setdefault(made, old.locs[source])


def items(b: Builder, node: Node) -> list[Node]:
    """Returns all results of a node."""
    if not isinstance(node.type, TupleType):
        return [node]
    return [b.item(node, index=i) for i in range(len(node.type.items))]


def index(name: str, extent: int) -> Node:
    """Returns a new index variable of a loop."""
    return Node("var", (), {"name": name, "extent": extent}, TensorType(I64, ()))


def extent_of(loop: Node) -> int:
    """Returns the number of iterations of a loop."""
    return static(loop.blocks[0].params[0].attrs["extent"])
