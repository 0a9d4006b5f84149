"""Which instruction multiplies the operands of a dot, where it is one for short floats."""

from __future__ import annotations

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.target import Cpu, Unit


def unit_of(dot: Node, cpu: Cpu) -> Unit | None:
    """The instruction of a dot both of whose operands have neighbours together, as `pack` does."""
    rule = parse_rule(dot.attrs["rule"])
    left, right, made = ([a.names[0] for a in o] for o in (*rule.inputs, *rule.outputs))
    if len(made) != 2:
        return None
    if made[1] not in right:
        left, right = right, left
    if left[-1] != right[-1] or right[-1] in made or right[-2] != made[1]:
        return None
    sizes = rule.sizes([a.shape for a in dot.args])
    rows, lanes, *depth = (int(sizes[n]) for n in (*made, right[-3], right[-1]))  # pyright: ignore
    return cpu.unit(dot.args[0].dtype.name, rows, lanes, depth[0] * depth[1])


def is_stored(node: Node, cpu: Cpu) -> bool:
    """Whether a node is a dot whose sums an instruction stores from registers of its own."""
    if not is_contraction(node):
        return False
    unit = unit_of(node, cpu)
    return unit is not None and unit.rows > 1
