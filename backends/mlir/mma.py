"""Which instruction multiplies the operands of a dot, where it is one for short numbers."""

from __future__ import annotations

from stack.ir.contraction import product_types, tile_extents
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.target import Cpu, Mma


def mma_of(dot: Node, cpu: Cpu) -> Mma | None:
    """The instruction of a dot. Where neighbours do not lie together, one that works on vectors."""
    found = tile_extents(dot)
    types = product_types(dot)
    if found is None or found.group == 1:
        return next((m for m in cpu.mmas(types) if m.rows == 1), None)
    mma = cpu.mma(types, found.rows, found.columns, found.depth)
    return mma if mma is not None and mma.group == found.group else None


def is_stored(node: Node, cpu: Cpu) -> bool:
    """Whether a node is a dot whose sums an instruction stores from registers of its own."""
    if not is_contraction(node):
        return False
    mma = mma_of(node, cpu)
    return mma is not None and mma.rows > 1
