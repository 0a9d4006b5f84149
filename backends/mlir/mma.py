"""Selects the instruction for the operands of a dot, if there is one for short numbers."""

from __future__ import annotations

from stack.ir.contraction import product_types, tile_extents
from stack.ir.node import Node
from stack.ir.traits import converts, is_contraction, is_number
from stack.target import Cpu, Mma


def mma_of(dot: Node, cpu: Cpu) -> Mma | None:
    """The instruction of a dot; one that works on vectors if neighbours are not contiguous."""
    found = tile_extents(dot)
    *_, sums = types = product_types(dot)
    if found is None or found.group == 1:
        return next((m for m in cpu.mmas(types) if m.rows == 1), None)
    left, right = (_unraised(a).dtype.name for a in dot.args)
    mma = cpu.mma((left, right, sums), found.rows, found.columns, found.depth)
    return mma if mma is not None and mma.group == found.group else None


def is_raised(node: Node) -> bool:
    """True if a node adds a constant number to a block of integers."""
    is_sum = node.op == "add" and node.dtype.is_integer and node.tensor.rank > 1
    return is_sum and is_number(node.args[1])


def _unraised(operand: Node) -> Node:
    """Returns the operand of a dot before it is cast and constants are added to it."""
    while is_raised(operand) or converts(operand):
        operand = operand.args[0]
    return operand


def is_stored(node: Node, cpu: Cpu) -> bool:
    """True for a dot whose result an instruction stores from tile registers."""
    if not is_contraction(node):
        return False
    mma = mma_of(node, cpu)
    return mma is not None and mma.rows > 1
