"""Which instruction multiplies the operands of a dot, where it is one for short floats."""

from __future__ import annotations

from stack.ir.contraction import tile_extents
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.target import Cpu, Unit


def unit_of(dot: Node, cpu: Cpu) -> Unit | None:
    """The instruction of a dot whose operands have neighbours together, as it multiplies them."""
    found = tile_extents(dot)
    if found is None or found.group == 1:
        return None
    unit = cpu.unit(dot.args[0].dtype.name, found.rows, found.columns, found.depth)
    return unit if unit is not None and unit.group == found.group else None


def is_stored(node: Node, cpu: Cpu) -> bool:
    """Whether a node is a dot whose sums an instruction stores from registers of its own."""
    if not is_contraction(node):
        return False
    unit = unit_of(node, cpu)
    return unit is not None and unit.rows > 1
