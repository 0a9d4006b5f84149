"""The product of a kernel: where it is, by which instruction, of which memory."""

from __future__ import annotations

from stack.ir.contraction import product_types, tile_extents
from stack.ir.node import Block, Node
from stack.ir.traits import is_contraction, is_load, unconverted
from stack.target import Cpu, Mma


def find_dot(block: Block) -> Node | None:
    """The dot of a kernel, where it has one."""
    for node in block.nodes:
        if is_contraction(node):
            return node
        for inner in node.blocks:
            found = find_dot(inner)
            if found is not None:
                return found
    return None


def tile_mma(dot: Node, cpu: Cpu) -> Mma | None:
    """The instruction of a tile's product: where it has one, operands are not converted."""
    found = tile_extents(dot)
    if found is None:
        return None
    return cpu.mma(product_types(dot), found.rows, found.columns, found.depth)


def is_packed(dot: Node) -> bool:
    """Whether an operand lies in local memory, where the kernel put it together itself."""
    loads = [a for a in map(unconverted, dot.args) if is_load(a)]
    return any(a.args[0].tensor.space == "local" for a in loads)


def reads(block: Block, memory: Node) -> list[Node]:
    """The nodes of a kernel that take an array."""
    found = [n for n in block.nodes if memory in n.args]
    return found + [n for inner in block.nodes for b in inner.blocks for n in reads(b, memory)]
