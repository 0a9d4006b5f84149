"""Interval analysis of guards: which conditions are constant, and where the others change.

Indices are affine in the loop variables, and each variable ranges from 0 to its last iteration. A
comparison is constant if the interval of the difference of its operands lies on one side of 0.

Source: the simplifier and loop partitioning of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node, topological
from stack.ir.ops import algebra_of
from stack.ir.traits import connective, is_load, is_number, negates, number, repeats
from stack.ir.types import TensorType
from stack.passes.steps.affine import WHOLE, AffineIndex, Ranges, place_of


def difference(node: Node, data: bool = False) -> AffineIndex | None:
    """Returns an index that is at least 0 where a comparison of integers is true, and negative
    where it is false; None if the node is no such comparison, or its operands are not affine.

    `data`: whether signed data may be an operand, which becomes a term.
    """
    if not is_comparison(node) or node.args[0].dtype.kind not in "iu":
        return None
    facts = algebra_of(node)
    sides = [place_of(a, casts=True) for a in node.args]
    if data and node.args[0].dtype.kind == "i":
        sides = [s or AffineIndex({a: 1}) for s, a in zip(sides, node.args, strict=True)]
    low, high = sides if facts.monotone[1] > 0 else sides[::-1]
    if low is None or high is None:
        return None
    return high.plus(low, -1).plus(0 if facts.reflexive else -1)


def limit_of(test: Node, place: Node) -> int | None:
    """Returns the n of a condition that is equivalent to `place < n`; None for others."""
    inside = difference(test, data=True)  # n - 1 - place
    if inside is None:
        return None
    rest = inside.plus(place_of(place, casts=True) or AffineIndex({place: 1}))
    return None if rest.terms else rest.more + 1


def is_comparison(node: Node) -> bool:
    """True if a node is a comparison."""
    return bool(node.args) and algebra_of(node).is_order


def is_condition(node: Node) -> bool:
    """True if a node is a boolean."""
    return isinstance(node.type, TensorType) and node.dtype.kind == "b"


def split_points(kernel: Node, of_loads: bool = False) -> dict[str, list[int]]:
    """Returns for each axis the iterations at which a guard (a condition on loop variables) changes
    its value.

    Args:
        kernel: the kernel.
        of_loads: only guards of loads.
    """
    found: dict[str, set[int]] = {}
    nodes = kernel.blocks[0].all_nodes
    if of_loads:
        masks = [m for n in nodes if is_load(n) and (m := access_parts(n)[1]) is not None]
        nodes = topological(masks, is_condition)
    for node in nodes:
        place = difference(node)
        if place is None or len(place.terms) != 1:
            continue
        ((var, sign),) = place.terms.items()
        if abs(sign) != 1 or "extent" not in var.attrs:
            continue
        point = -place.more if sign > 0 else place.more + 1
        if 0 < point < int(var.attrs["extent"]):
            found.setdefault(str(var.attrs["name"]), set()).add(point)
    return {axis: sorted(points) for axis, points in found.items()}


def held(node: Node, ranges: Ranges = WHOLE) -> bool | None:
    """Returns the value of a condition if it is the same for all iterations of the loops around, or
    for those in `ranges`.

    None if it differs, or if that cannot be determined.
    """
    if not is_condition(node):
        return None
    if is_number(node):
        return bool(number(node))
    if repeats(node) or negates(node):
        side = held(node.args[0], ranges)
        return side if side is None or repeats(node) else not side
    if connective(node):
        sides = [held(a, ranges) for a in node.args]
        decides = connective(node) < 0  # one is enough for "or", and all are needed for "and"
        if decides in sides:
            return decides
        return None if None in sides else not decides
    found = difference(node)
    ends = found.ends(ranges) if found is not None else None
    if ends is None:
        return None
    return True if ends[0] >= 0 else False if ends[1] < 0 else None
