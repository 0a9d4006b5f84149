"""Blocked summation: rounding errors of long sums of floats grow with a block, not with the length.

A loop that adds many numbers becomes a loop over blocks, each of which starts from zero. That loop
becomes a loop over blocks of blocks, and so on. This is pairwise summation by a tree of high
degree. It costs one more addition for each `BLOCK` numbers. The upper levels dominate the error, so
they have a lower degree, which costs next to nothing.

Source: N. J. Higham, "The accuracy of floating point summation" (1993).
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.builder import Builder, constant, rebuild_block
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_loop, signs
from stack.ir.types import TensorType
from stack.passes.tiling.loops import Names, names_of

BLOCK = 32  # numbers in a block of the lowest level
DEGREE = 8  # blocks in a block of an upper level


def sum_in_blocks(block: Block) -> Block:
    """Rewrites the body of a kernel: each serial loop that adds up many floats becomes nested
    loops, which sum blocks of its iterations first, then these sums.
    """
    if not any(map(_long_sums, (node for _, node in walk(block)))):
        return block
    return rebuild_block(block, _Blocks(names_of(block)).visit)


class _Blocks:
    def __init__(self, names: Names) -> None:
        self.b = Builder()
        self.names = names
        self.count = 0

    def visit(self, node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
        """Copies one node of the kernel with new operands and inner blocks. A loop with a long sum
        becomes a loop over blocks of its iterations.
        """
        made = node.rebuilt(args, blocks=blocks)
        sums = _long_sums(made)
        return self._split(node, args, blocks[0], set(sums), BLOCK) if sums else made

    def _split(
        self, node: Node, args: tuple[Node, ...], block: Block, sums: set[int], length: int
    ) -> Node:
        """Splits a loop with long sums into an outer loop over blocks, and an inner one over the
        `length` iterations of each block.
        """
        b = self.b
        index, *carried = block.params
        extent = int(index.attrs["extent"])
        count = -(-extent // length)
        self.count += 1
        own = self.names.own
        outer = Node("var", (), {"name": own(f"block{self.count}"), "extent": count}, index.type)
        names = [own(f"{c.attrs['name']}_b{self.count}") for c in carried]
        held = [Node("var", (), {"name": n}, c.type) for n, c in zip(names, carried, strict=True)]
        first = b.mul(outer, length)
        last = b.add(first, length)
        if extent % length:
            last = b.min(last, extent)
        starts = [_zero(b, h) if i in sums else h for i, h in enumerate(held)]
        attrs = {**node.attrs, "limited": True}
        part = Node("loop", (first, last, *starts), attrs, node.type, (block,))
        parts = [part] if len(held) == 1 else [b.item(part, index=i) for i in range(len(held))]
        results = [
            b.add(h, p) if i in sums else p
            for i, (h, p) in enumerate(zip(held, parts, strict=True))
        ]
        over = Block((outer, *held), results)
        if count < 2 * DEGREE:
            return Node("loop", args, node.attrs, node.type, (over,))
        return self._split(node, args, over, sums, DEGREE)


def _long_sums(node: Node) -> Mapping[int, Node]:
    """Finds carried values of a serial loop that are long sums of floats, with the addend of each
    iteration. Empty for other nodes.
    """
    if not is_loop(node, "serial") or node.attrs.get("limited"):
        return {}
    block = node.blocks[0]
    index, *carried = block.params
    extent = index.attrs.get("extent")
    found: dict[int, Node] = {}
    if not isinstance(extent, int) or extent < 2 * BLOCK:
        return found
    for i, (held, result) in enumerate(zip(carried, block.results, strict=True)):
        is_float = isinstance(held.type, TensorType) and held.dtype.is_float
        if not is_float or signs(result) != (1, 1):
            continue
        others = [a for a in result.args if a is not held]
        if len(others) == 1 and _uses(block, held) == 1 and _uses(block, result) == 1:
            found[i] = others[0]
    return found


def _uses(block: Block, node: Node) -> int:
    """Counts how often the block or its direct inner blocks use a node, as an operand or as a
    result. The count is 1 if only the next iteration reads a carried sum.
    """
    inner = [r for n in block.nodes for b in n.blocks for r in b.results]
    operands = [a for n in block.nodes for a in n.args]
    return sum(a is node for a in (*operands, *inner, *block.results))


def _zero(b: Builder, like: Node) -> Node:
    zero = constant(0.0, like.dtype)
    return b.broadcast(zero, axes=(), type=like.type) if like.tensor.rank else zero
