"""Track axes of parameters through a program: the dims of other values that correspond to them."""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_operator, maker, place_of
from stack.passes.sharding.factors import factors_of

Dims = Mapping[Node, frozenset[int]]


def along(func: Func, starts: Mapping[Node, int]) -> Dims:
    """Follows a dim of each of the values `starts` forward through the program. Returns for each
    value that it reaches the dims that correspond to it."""
    found = {node: frozenset({dim}) for node, dim in starts.items()}
    for node in func.nodes:
        source, place = maker(node), place_of(node)
        if not _is_followed(source) or not any(a in found for a in source.args):
            continue
        reached = reached_factors(source, found)
        results = factors_of(source).results[place]
        dims = [d for d, names in enumerate(results) if names and names[0] in reached]
        if dims:
            found[node] = found.get(node, frozenset[int]()) | frozenset(dims)
    return found


def reached_factors(node: Node, dims: Dims) -> set[str]:
    """Returns the major factors of those dims of a node's operands that are in `dims`."""
    factors = factors_of(node)
    return {
        factors.operands[i][dim][0]
        for i, arg in enumerate(node.args)
        for dim in dims.get(arg, ())
        if factors.operands[i][dim]
    }


def _is_followed(node: Node) -> bool:
    """True if the factors of a node say which dims of its results correspond to its operands'."""
    return is_operator(node) or not (node.blocks or len(node.types) > 1)


def first_reduction(func: Func, node: Node, dim: int) -> int:
    """Returns the position in the program of the first node that reduces along a dim of a value, or
    along a dim that corresponds to it. The number of nodes if none does."""
    reached = along(func, {node: dim})
    for number, user in enumerate(func.nodes):
        if any(a in reached for a in user.args) and _is_followed(user):
            factors = factors_of(user)
            for i, arg in enumerate(user.args):
                names = {f for d in reached.get(arg, ()) for f in factors.operands[i][d]}
                if names & factors.reduced:
                    return number
    return len(func.nodes)
