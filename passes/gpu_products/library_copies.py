"""Operands of a matmul that a library copies.

It reads an operand as a matrix, or a batch of them: rows and contracted axes are one axis each. If
those of an operand are not adjacent in memory, in the order of the other operand, it is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from stack.ir.axes import parse_rule
from stack.ir.contraction import contraction
from stack.ir.node import Node
from stack.passes.tiling.frame import static
from stack.target import Gpu


def copy_seconds(dot: Node, gpu: Gpu) -> float:
    """Estimates the seconds that a library takes to copy operands of a dot."""
    roles = contraction(parse_rule(dot.attrs["rule"]))
    sides = ((roles.left, roles.rows), (roles.right, roles.columns))
    seconds = 0.0
    for x, (names, own) in zip(dot.args, sides, strict=True):
        real = [n for n, size in zip(names, x.shape, strict=True) if size != 1]
        if not all(_is_run(role, real) for role in (roles.batch, own, roles.contracted)):
            seconds += gpu.launch + 2 * static(x.tensor.bytes) / gpu.memory_rate
    return seconds


def _is_run(role: Sequence[str], names: Sequence[str]) -> bool:
    """True if the axes of a role are adjacent and in the same order among all axes."""
    places = [names.index(n) for n in role if n in names]
    return all(b == a + 1 for a, b in pairwise(places))
