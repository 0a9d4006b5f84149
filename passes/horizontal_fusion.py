"""horizontal_fusion: independent matmuls of one left operand become one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.node import Block, Node, topological
from stack.ir.traits import contractions, is_generated, items_of
from stack.ir.types import TupleType
from stack.passes.gpu_products.group_split import side_by_side
from stack.passes.gpu_products.tile_choice import (
    Product,
    best_seconds,
    horizontal_product,
    product_of,
)
from stack.passes.tiling.contraction import left_of
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import group_of
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass


@dataclass(frozen=True)
class HorizontalFusion(BlockPass, needs=("dot",)):
    """Put groups of one matmul each, all of one left operand, into one kernel.

    This is done only if the model of `tiles` expects it to be faster. Each matmul keeps its
    epilogue.

    Attributes:
        most: most groups in one kernel.
    """

    most: int = 4

    def change(self, block: Block, log: Log) -> Block:
        refused: set[Node] = set()
        while True:
            # one set at a time: merged groups may make others depend on each other
            found = self._find(block, refused)
            if not found:
                return block
            refused.update(found)
            if not self._is_faster(block, found, log):
                continue
            lines = [line for n in found for line in block.locs.get(n, ())]
            if not log.spend("horizontal_fusion", tuple(dict.fromkeys(lines))):
                return block
            block = _put(block, found)

    def _find(self, block: Block, refused: set[Node]) -> list[Node]:
        """Returns the first set of groups, at most `most`, that multiply one left operand and do
        not depend on each other; empty if there are no two such groups."""
        known: dict[object, list[Node]] = {}
        for node in block.nodes:
            key = None if node in refused else _left_operand(node)
            if key is None:
                continue
            held = known.setdefault(key, [])
            before = set(topological(node.args))
            if len(held) < self.most and before.isdisjoint(held):
                held.append(node)
        sets = [held for held in known.values() if len(held) > 1]
        return sets[0] if sets else []

    def _is_faster(self, block: Block, nodes: Sequence[Node], log: Log) -> bool:
        try:
            products = [_product(n) for n in nodes]
        except CannotTile:
            return False
        first = products[0]
        if any(p.batch != 1 for p in products):
            return False
        if first.height == 1 and any(p.across != first.across for p in products):
            return False  # row-major and transposed weights want different tiles
        dtype = _dot(nodes[0]).args[0].dtype
        both, *each = (
            best_seconds(p, dtype, log.gpu) for p in (horizontal_product(products), *products)
        )
        shown = ", ".join(f"%{block.names.get(n, n.op)}" for n in nodes)
        log.note(
            f"{shown}: the model expects {both * 1e6:.1f} us side by side,"
            f" {sum(each) * 1e6:.1f} us one by one"
        )
        return both < sum(each)


def _dot(node: Node) -> Node:
    (dot,) = contractions(group_of(node).blocks[0].nodes)
    return dot


def _product(node: Node) -> Product:
    return product_of(group_of(node).blocks[0], [_dot(node)])


def _left_operand(node: Node) -> object:
    """Returns a key that groups of one left operand share; None for other nodes."""
    group = group_of(node)
    dots = contractions(group.blocks[0].nodes) if is_generated(group) else []
    if len(dots) != 1:
        return None
    (dot,), body = dots, group.blocks[0]
    left = left_of(dot)
    if left is None or left[0] not in body.params or not dot.dtype.is_float:
        return None
    outer = group.args[body.params.index(left[0])]
    return outer, left[1], dot.args[0].dtype


def _put(block: Block, nodes: Sequence[Node]) -> Block:
    """Returns the block with the matmul groups `nodes` replaced by one group that computes the
    results of all."""
    made = side_by_side([group_of(n) for n in nodes])
    changed: dict[Node, Node] = {}
    first = 0
    for node in nodes:
        if not isinstance(node.type, TupleType):
            changed[node] = Node("item", (made,), {"index": first}, node.type)
            first += 1
            continue
        for item in items_of(node, block.nodes):
            index = first + int(item.attrs["index"])
            changed[item] = Node("item", (made,), {"index": index}, item.type)
        first += len(node.type.items)
    return replace(block, changed)
