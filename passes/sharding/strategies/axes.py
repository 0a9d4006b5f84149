"""Track axes of parameters through a program: the dims of other values that correspond to them."""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.func import Func
from stack.ir.node import Node
from stack.passes.sharding.factors import factors_of

Dims = Mapping[Node, frozenset[int]]


def along(func: Func, starts: Mapping[Node, int]) -> Dims:
    """Follows a dim of each of the values `starts` forward through the program. Returns for each
    value that it reaches the dims that correspond to it."""
    found = {node: frozenset({dim}) for node, dim in starts.items()}
    for node in func.nodes:
        if node.blocks or len(node.types) > 1 or not any(a in found for a in node.args):
            continue
        factors = factors_of(node)
        reached = {
            factors.operands[i][dim][0]
            for i, arg in enumerate(node.args)
            for dim in found.get(arg, ())
            if factors.operands[i][dim]
        }
        dims = [d for d, names in enumerate(factors.results[0]) if names and names[0] in reached]
        if dims:
            found[node] = found.get(node, frozenset[int]()) | frozenset(dims)
    return found


def first_reduction(func: Func, node: Node, dim: int) -> int:
    """Returns the position in the program of the first node that reduces along a dim of a value, or
    along a dim that corresponds to it. The number of nodes if none does."""
    reached = along(func, {node: dim})
    for number, user in enumerate(func.nodes):
        if any(a in reached for a in user.args) and len(user.types) == 1 and not user.blocks:
            factors = factors_of(user)
            for i, arg in enumerate(user.args):
                names = {f for d in reached.get(arg, ()) for f in factors.operands[i][d]}
                if names & factors.reduced:
                    return number
    return len(func.nodes)
