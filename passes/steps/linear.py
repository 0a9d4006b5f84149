"""Index arithmetic of kernels: a scalar as a multiple of one loop variable and a rest."""

from __future__ import annotations

from collections.abc import Collection

from stack.ir.builder import make
from stack.ir.node import Node
from stack.ir.traits import is_number, number

Linear = tuple[int, Node | None]  # a factor, and what is added; None for nothing


def linear(node: Node, var: Node) -> Linear | None:
    """`factor * var + rest` for an integer; None where it is not of that form."""
    if node is var:
        return 1, None
    if var not in node.vars:
        return 0, node
    if node.op in ("add", "sub"):
        first, second = (linear(a, var) for a in node.args)
        if first is None or second is None:
            return None
        sign = 1 if node.op == "add" else -1
        return first[0] + sign * second[0], _joined(node.op, first[1], second[1], node)
    if node.op == "mul":
        for factor, other in (node.args, node.args[::-1]):
            found = linear(other, var)
            if is_number(factor) and not factor.tensor.rank and found is not None:
                rest = found[1]
                made = make("mul", (rest, factor)) if rest is not None else None
                return int(number(factor)) * found[0], made
    return None


def _joined(op: str, first: Node | None, second: Node | None, like: Node) -> Node | None:
    if second is None:
        return first
    if first is None and op == "add":
        return second
    if first is None:
        first = make("sub", (second, second))
    return make(op, (first, second))


def spans(rest: Node | None, inner: Collection[Node]) -> int | None:
    """By how much a rest can differ over the turns of loops with the variables `inner`.

    None where that is not known.
    """
    total = 0
    for var in inner:
        if rest is None or var not in rest.vars:
            continue
        found = linear(rest, var)
        if found is None:
            return None
        total += abs(found[0]) * (int(var.attrs["extent"]) - 1)
        rest = found[1]
    return total
