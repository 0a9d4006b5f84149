"""Equivalence classes of the dims of a kernel's tiles: all dims of a class get the same share.

The operands and the result of an elementwise op have one layout, and so do the values that a loop
carries from one iteration to the next. Indices and masks computed from them are left out: each use
recomputes them in the layout that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stack.ir.kernel_ops import access_parts, loop_parts
from stack.ir.node import Block, Node, walk
from stack.ir.ops import rule_of
from stack.ir.traits import (
    is_alias,
    is_contraction,
    is_elementwise,
    is_item,
    is_loop,
    is_memory,
)
from stack.ir.types import TensorType
from stack.passes.gpu_layout.contiguity import tile_of

Dim = tuple[Node, int]  # a tile and one of its axes


class DimClasses:
    """The equivalence classes of all dims of a kernel's tiles (union-find): dims in one class get
    the same distribution over threads. Dims of one element have no class.
    """

    def __init__(self, block: Block) -> None:
        self.root: dict[Dim, Dim] = {}
        self.tiles: dict[Dim, set[Node]] = {}  # of each class, by its root
        self.cheap: dict[Node, bool] = {}
        self.nodes = [node for _, node in walk(block)]
        for node in self.nodes:
            if is_tile(node) and not self.is_cheap(node):
                for dim in ((node, i) for i, size in enumerate(node.shape) if size != 1):
                    self.root[dim] = dim
                    self.tiles[dim] = {node}
        for node in self.nodes:
            for first, second in _equivalent(node):
                if first in self.root and second in self.root:
                    self._join(first, second)

    def of(self, dim: Dim) -> Dim:
        """The representative of a dim's class."""
        while self.root[dim] != dim:
            self.root[dim] = self.root[self.root[dim]]
            dim = self.root[dim]
        return dim

    def dims(self, node: Node) -> list[Dim]:
        """Returns the dims of a tile that have more than one element, and thus a class."""
        return [d for i in range(node.tensor.rank) if (d := (node, i)) in self.root]

    def is_cheap(self, node: Node) -> bool:
        """True for scalars, and for indices and masks, which each use may recompute."""
        if node not in self.cheap:
            self.cheap[node] = self._is_cheap(node)
        return self.cheap[node]

    def _is_cheap(self, node: Node) -> bool:
        if not node.tensor.rank or node.op == "iota":
            return True
        is_index = node.op == "broadcast" or (is_elementwise(node) and node.dtype.kind in "biu")
        return is_index and all(self.is_cheap(a) for a in node.args)

    def _join(self, first: Dim, second: Dim) -> None:
        """Merges the classes of two dims, unless some tile has dims of both."""
        first, second = self.of(first), self.of(second)
        if first == second or not self.tiles[first].isdisjoint(self.tiles[second]):
            return
        self.root[second] = first
        self.tiles[first] |= self.tiles.pop(second)


def is_tile(node: Node) -> bool:
    """True for values in registers that have axes."""
    return isinstance(node.type, TensorType) and node.type.rank > 0 and not is_memory(node)


def kept_dims(source: TensorType, target: TensorType) -> Mapping[int, int] | None:
    """Returns for a reshape that only adds and drops dims of size 1 which dim of the result each
    dim of the operand becomes; None for other reshapes.
    """
    first = [i for i, s in enumerate(source.shape) if s != 1]
    second = [i for i, s in enumerate(target.shape) if s != 1]
    if [source.shape[i] for i in first] != [target.shape[i] for i in second]:
        return None
    return dict(zip(first, second, strict=True))


def dims_of_operands(node: Node) -> Sequence[Mapping[int, int]]:
    """Returns for each operand of a node which dim of the result each of its dims becomes; without
    dims that the result does not have.
    """
    if is_alias(node):
        return [kept_dims(node.args[0].tensor, node.tensor) or {}]
    if node.op == "again":
        return [{i: i for i in range(node.tensor.rank)}]
    rule = rule_of(node)
    if rule is None:
        return [{} for _ in node.args]
    made = {axis.names: i for i, axis in enumerate(rule.outputs[0])}
    return [
        {i: made[axis.names] for i, axis in enumerate(operand) if axis.names in made}
        for operand in rule.inputs
    ]


def _equivalent(node: Node) -> Iterable[tuple[Dim, Dim]]:
    """Yields the pairs of dims of a node's operands and result that should be distributed over
    threads in the same way, so that the node needs no layout conversion.
    """
    if is_loop(node):
        yield from _carried(node)
        if is_tile(node):
            yield from _same(node, node.blocks[0].params[1])
    elif node.op == "store" or (node.op == "load" and is_tile(node)):
        index, mask, _ = access_parts(node)
        for other in (*index, *([mask] if mask is not None else [])):
            yield from _same(tile_of(node), other)
    elif is_item(node) and is_tile(node):
        yield from _same(node, node.args[0].blocks[0].params[1 + int(node.attrs["index"])])
    elif is_tile(node) and not is_contraction(node):
        for arg, dims in zip(node.args, dims_of_operands(node), strict=True):
            for before, after in dims.items():
                yield (node, after), (arg, before)


def _same(first: Node, second: Node) -> Iterable[tuple[Dim, Dim]]:
    if is_tile(first) and is_tile(second):
        for i in range(first.tensor.rank):
            yield (first, i), (second, i)


def _carried(loop: Node) -> Iterable[tuple[Dim, Dim]]:
    block = loop.blocks[0]
    _, init = loop_parts(loop.args, loop.attrs)
    for param, start, end in zip(block.params[1:], init, block.results, strict=True):
        yield from _same(param, start)
        yield from _same(param, end)
