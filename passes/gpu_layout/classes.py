"""Which dims of a kernel's tiles are shared out alike.

Operands of an elementwise op lie as its result does, what a loop carries as what it started from,
and so on: such dims form a class, and each class gets one share. What costs nothing to compute
again, such as places and masks of places, is left out: it is made wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from stack.ir import ops
from stack.ir.kernel_ops import access_parts, loop_parts
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_alias, is_item, is_loop, is_reduction, reads_by_data
from stack.ir.types import TensorType

Dim = tuple[Node, int]  # a tile and one of its axes


class Classes:
    """The classes of all dims of a block that are longer than one element."""

    def __init__(self, block: Block) -> None:
        self.root: dict[Dim, Dim] = {}
        self.tiles: dict[Dim, set[Node]] = {}  # of each class, by its root
        self.cheap: dict[Node, bool] = {}
        self.nodes = [node for _, node in walk(block)]
        for node in self.nodes:
            for dim in self._dims(node):
                self.root[dim] = dim
                self.tiles[dim] = {node}
        for node in self.nodes:
            for first, second in _alike(node):
                if first in self.root and second in self.root:
                    self._join(first, second)

    def of(self, dim: Dim) -> Dim:
        """The class of a dim, by one of them."""
        while self.root[dim] != dim:
            self.root[dim] = self.root[self.root[dim]]
            dim = self.root[dim]
        return dim

    def is_cheap(self, node: Node) -> bool:
        """Whether a tile is places and numbers alone, which each use may compute for itself."""
        if node not in self.cheap:
            self.cheap[node] = self._is_cheap(node)
        return self.cheap[node]

    def _is_cheap(self, node: Node) -> bool:
        if not node.tensor.rank:
            return True
        if node.op == "iota":
            return True
        if node.op == "broadcast" or (
            ops.lookup(node.op).kind == "elementwise" and node.dtype.kind in "biu"
        ):
            return all(self.is_cheap(a) for a in node.args)
        return False

    def _dims(self, node: Node) -> list[Dim]:
        if not is_tile(node) or self.is_cheap(node):
            return []
        return [(node, i) for i, size in enumerate(node.shape) if size != 1]

    def _join(self, first: Dim, second: Dim) -> None:
        """Put two dims into one class, unless some tile has both."""
        first, second = self.of(first), self.of(second)
        if first == second or not self.tiles[first].isdisjoint(self.tiles[second]):
            return
        self.root[second] = first
        self.tiles[first] |= self.tiles.pop(second)


def is_tile(node: Node) -> bool:
    """Whether a value is a tile with axes."""
    return isinstance(node.type, TensorType) and node.type.rank > 0 and not is_memory(node)


def is_memory(node: Node) -> bool:
    """Whether a value is memory."""
    return isinstance(node.type, TensorType) and node.type.space in ("global", "shared", "local")


def kept_dims(source: TensorType, target: TensorType) -> list[tuple[int, int]] | None:
    """Pairs of dims of a reshape that only adds and drops dims of one element; else None."""
    first = [i for i, s in enumerate(source.shape) if s != 1]
    second = [i for i, s in enumerate(target.shape) if s != 1]
    if [source.shape[i] for i in first] != [target.shape[i] for i in second]:
        return None
    return list(zip(first, second, strict=True))


def _alike(node: Node) -> Iterable[tuple[Dim, Dim]]:
    """Pairs of dims that an op wants to lie alike."""
    if is_loop(node):
        yield from _carried(node)
        if is_tile(node):
            yield from _same(node, node.blocks[0].params[1])
    elif node.op == "store":
        index, mask, _ = access_parts(node)
        for other in (*index, *([mask] if mask is not None else [])):
            yield from _same(node.args[1], other)
    elif not is_tile(node):
        return
    elif node.op == "load":
        index, mask, _ = access_parts(node)
        for other in (*index, *([mask] if mask is not None else [])):
            yield from _same(node, other)
    elif is_item(node):
        yield from _same(node, node.args[0].blocks[0].params[1 + int(node.attrs["index"])])
    elif node.op == "broadcast":
        for i, axis in enumerate(node.attrs["axes"]):
            yield (node, axis), (node.args[0], i)
    elif node.op == "transpose":
        for i, axis in enumerate(node.attrs["perm"]):
            yield (node, i), (node.args[0], axis)
    elif is_reduction(node):
        kept = [i for i in range(node.args[0].tensor.rank) if i not in node.attrs["axes"]]
        for i, axis in enumerate(kept):
            yield (node, i), (node.args[0], axis)
    elif is_alias(node):
        for before, after in kept_dims(node.args[0].tensor, node.tensor) or ():
            yield (node, after), (node.args[0], before)
    elif reads_by_data(node):
        yield from _same(node, node.args[1])
    elif node.op in ("scan", "again") or ops.lookup(node.op).kind == "elementwise":
        for arg in node.args:
            yield from _same(node, arg)


def _same(first: Node, second: Node) -> Iterable[tuple[Dim, Dim]]:
    if is_tile(first) and is_tile(second):
        for i in range(first.tensor.rank):
            yield (first, i), (second, i)


def _carried(loop: Node) -> Iterable[tuple[Dim, Dim]]:
    block = loop.blocks[0]
    _, init = loop_parts(loop.args, loop.attrs)
    for held, start, end in zip(block.params[1:], init, block.results, strict=True):
        yield from _same(held, start)
        yield from _same(held, end)
