"""Affine analysis of indices: an integer as `factor * var + rest` in one loop variable."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd

from stack.ir.builder import constant, make
from stack.ir.node import Node
from stack.ir.traits import is_number, is_positions, multiplies, number

MOVES = ("broadcast", "reshape", "transpose")  # ops that move elements of a tile
Linear = tuple[int, Node | None]  # the factor and the rest; None for a rest of 0


def linear(node: Node, var: Node) -> Linear | None:
    """Returns an integer node as `factor * var + rest`, with the pair (factor, rest) in which rest
    is None for 0; None if it is not affine in the variable.
    """
    if node is var:
        return 1, None
    if var not in node.vars:
        return 0, node
    if node.op in MOVES:
        return _moved(node, linear(node.args[0], var))
    if node.op in ("add", "sub"):
        first, second = (linear(a, var) for a in node.args)
        if first is None or second is None:
            return None
        sign = 1 if node.op == "add" else -1
        return first[0] + sign * second[0], _joined(node.op, first[1], second[1], node)
    if multiplies(node):
        for factor, other in (node.args, node.args[::-1]):
            found = linear(other, var)
            if is_number(factor) and not factor.tensor.rank and found is not None:
                rest = found[1]
                made = make("mul", (rest, factor)) if rest is not None else None
                return int(number(factor)) * found[0], made
    return None


def start_along(index: Node, var: Node, step: int = 1) -> Node | None:
    """Returns the start of an index `start + step * var`; None for other indices."""
    found = linear(index, var)
    if found is None or found[0] != step:
        return None
    return constant(0, var.dtype) if found[1] is None else found[1]


def _moved(node: Node, found: Linear | None) -> Linear | None:
    """Applies the movement op `node`, such as a broadcast, to its operand `factor * var + rest`:
    only the rest changes.
    """
    if found is None or found[1] is None:
        return found
    rest = found[1]
    if not node.args[0].tensor.rank and rest.tensor.rank:
        return None
    return found[0], make(node.op, (rest,), node.attrs, hint=node.type)


def _joined(op: str, first: Node | None, second: Node | None, like: Node) -> Node | None:
    if second is None:
        return first
    if first is None and op == "add":
        return second
    if first is None:
        first = make("sub", (second, second))
    return make(op, (first, second))


def is_apart(index: Node, var: Node, inner: Collection[Node], size: int) -> bool:
    """True if accesses to `size` elements from an index on are disjoint for different iterations
    of the loop over `var`, whatever the iterations of the loops over `inner` inside of it are.
    """
    found = linear(index, var)
    terms = None if found is None else _terms(found[1], inner)
    if found is None or terms is None or not found[0]:
        return False
    step, extent = abs(found[0]), int(var.attrs["extent"])
    small = sum(abs(c) * (n - 1) for c, n in terms if abs(c) < step) + size - 1
    large = [abs(c) for c, n in terms if abs(c) >= step and n > 1]
    # large terms shift the index by multiples of their gcd, which exceeds the span of all of these
    return small < step and (not large or gcd(*large) > step * (extent - 1) + small)


def _terms(node: Node | None, inner: Collection[Node]) -> list[tuple[int, int]] | None:
    """Returns the factor and the extent of each term of an affine integer over inner loops and the
    lanes of a tile; None if it is not affine. `node`: None for 0.
    """
    if node is None or (not node.tensor.rank and node.vars.isdisjoint(inner)):
        return []
    if node.op == "var":
        return [(1, int(node.attrs["extent"]))]
    if is_positions(node):
        return [(1, int(node.shape[int(node.attrs["axis"])]))]  # pyright: ignore[reportArgumentType]
    if node.op in MOVES:
        return _terms(node.args[0], inner)
    parts = [_terms(a, inner) for a in node.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if node.op in ("add", "sub"):
        return [term for part in known for term in part]
    factors = [a for a in node.args if is_number(a) and not a.tensor.rank]
    if not (multiplies(node) and factors):
        return None
    return [(c * int(number(factors[0])), n) for part in known for c, n in part]
