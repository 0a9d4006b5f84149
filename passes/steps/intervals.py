"""Interval analysis of guards: which conditions are constant, and where the others change.

Indices are affine in the loop variables, and each variable ranges from 0 to its last iteration. A
comparison is constant if the interval of the difference of its operands lies on one side of 0.

Source: the simplifier and loop partitioning of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stack.ir.builder import constant, make
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.ops import algebra_of
from stack.ir.traits import (
    connective,
    converts,
    divides,
    is_load,
    is_number,
    is_positions,
    multiplies,
    negates,
    number,
    repeats,
    signs,
)
from stack.ir.types import DType, TensorType

MOST = 256  # nodes of an index
Ranges = Mapping[Node, tuple[int, int]]  # first and last iteration of loop variables
WHOLE: Ranges = {}  # variables that are not listed range over their whole extent


@dataclass(frozen=True)
class AffineIndex:
    """An index expression: a sum of loop variables (or other terms) times coefficients, plus a
    constant.
    """

    terms: Mapping[Node, int] = field(default_factory=dict[Node, int])
    more: int = 0

    def plus(self, other: AffineIndex, sign: int = 1) -> AffineIndex:
        """Returns the sum of this index and another one; the difference if `sign` is -1."""
        both = {**self.terms, **other.terms}
        terms = {n: self.terms.get(n, 0) + sign * other.terms.get(n, 0) for n in both}
        held = {n: count for n, count in terms.items() if count}
        return AffineIndex(held, self.more + sign * other.more)

    def times(self, factor: int) -> AffineIndex:
        """Returns the index multiplied by a constant."""
        return AffineIndex({n: c * factor for n, c in self.terms.items()}, self.more * factor)

    def node(self, dtype: DType) -> Node:
        """Builds the node that computes the index: `c0 * v0 + c1 * v1 + ... + c`."""
        made: Node | None = None
        for node, count in self.terms.items():
            term = node if count == 1 else make("mul", (node, constant(count, dtype)))
            made = term if made is None else make("add", (made, term))
        if made is None:
            return constant(self.more, dtype)
        return make("add", (made, constant(self.more, dtype))) if self.more else made

    def ends(self, ranges: Ranges) -> tuple[int, int] | None:
        """Returns the least and the greatest value of the index; None if some term of it has no
        bounds.
        """
        low = high = self.more
        for node, count in self.terms.items():
            last = _last(node)
            if last is None:
                return None
            ends = [count * end for end in ranges.get(node, (0, last))]
            low, high = low + min(ends), high + max(ends)
        return low, high


def _last(node: Node) -> int | None:
    """Returns the greatest value that a loop variable or an iota takes; None for other nodes."""
    if is_positions(node):
        size = node.shape[int(node.attrs["axis"])]
        return size - 1 if isinstance(size, int) else None
    return int(node.attrs["extent"]) - 1 if "extent" in node.attrs else None


def place_of(node: Node, casts: bool = False) -> AffineIndex | None:
    """Returns an integer node as a sum of terms with constant coefficients; nodes that are not
    affine become terms. None for data from memory: it may overflow.

    Args:
        node: the integer, a scalar or a tile. An iota that is broadcast becomes a term along its
            axis of the tile.
        casts: whether to look through conversions that keep all values, so that terms may have
            other element types.
    """
    nodes = _index_nodes(node)
    if nodes is None:
        return None
    found: dict[Node, AffineIndex] = {}
    for one in nodes:
        found[one] = _place(one, [found[a] for a in one.args], casts)
    return found[node]


def grows(node: Node, axis: Node) -> bool:
    """True if an integer is greater in each iteration along `axis` than in the ones before."""
    place = place_of(node)
    if place is None or place.terms.get(axis, 0) <= 0:
        return False
    return all(term is axis or axis not in term.vars for term in place.terms)


def is_affine(node: Node) -> bool:
    """True if a node is a scalar integer that is affine in loop variables."""
    place = None if not isinstance(node.type, TensorType) or node.tensor.rank else place_of(node)
    return place is not None and all("extent" in v.attrs for v in place.terms)


def collected(index: Node) -> Node:
    """Rewrites a scalar index as a sum with each variable once; returns other nodes as they are."""
    place = None if index.tensor.rank else place_of(index)
    return index if place is None else place.node(index.dtype)


def _index_nodes(node: Node) -> list[Node] | None:
    """Returns the nodes that compute an index, operands first; None if one of them is data, or if
    there are too many.
    """
    order: dict[Node, None] = {}
    pending = [node]
    while pending:
        one = pending[-1]
        is_integer = isinstance(one.type, TensorType) and one.dtype.kind in "iu"
        if not is_integer or one.blocks or is_load(one) or len(order) > MOST:
            return None
        is_leaf = is_number(one) or _last(one) is not None
        if not (is_leaf or one.args):
            return None
        missing = [] if is_leaf else [a for a in one.args if a not in order]
        if missing:
            pending += missing
            continue
        order[pending.pop()] = None
    return list(order)


def _place(node: Node, parts: Sequence[AffineIndex], casts: bool) -> AffineIndex:
    """Returns the affine form of one index node, given those of its operands."""
    if is_number(node):
        return AffineIndex(more=int(number(node)))
    if repeats(node):
        terms = {_spread(term, node): count for term, count in parts[0].terms.items()}
        return AffineIndex(terms, parts[0].more)
    if casts and converts(node) and parts and _is_exact(parts[0], node):
        return parts[0]
    taken = signs(node)
    made: AffineIndex | None = None
    if taken and len(parts) == 2:
        made = parts[0].times(taken[0]).plus(parts[1].times(taken[1]))
    elif multiplies(node):
        factors = zip(parts, parts[::-1], strict=True)
        made = next((o.times(f.more) for f, o in factors if not f.terms), None)
    return made if made is not None and _fits(made, node.dtype) else AffineIndex({node: 1})


def _fits(place: AffineIndex, dtype: DType) -> bool:
    """True if no value of an index overflows the integer type `dtype`. Terms without known bounds
    are taken to be small.
    """
    ends = place.ends(WHOLE)
    if ends is None:
        return dtype.kind == "i" and dtype.bits >= 32
    most = 1 << (dtype.bits - (dtype.kind == "i"))
    return (-most if dtype.kind == "i" else 0) <= ends[0] and ends[1] < most


def _is_exact(place: AffineIndex, cast: Node) -> bool:
    """True if a conversion of an index to another type of integers keeps all of its values."""
    own, source = cast.dtype, cast.args[0].dtype
    if own.kind != "i":
        return False
    if place.ends(WHOLE) is None:
        return own.bits > source.bits or own == source or _quotient_fits(place, own)
    return _fits(place, own)


def _quotient_fits(place: AffineIndex, dtype: DType) -> bool:
    """True if an index is one quotient, such as the number of a block, that fits `dtype` since its
    dividend has known bounds."""
    if place.more or list(place.terms.values()) != [1]:
        return False
    (term,) = place.terms
    if not (divides(term) and is_number(term.args[1]) and number(term.args[1]) > 0):
        return False
    inner, size = place_of(term.args[0]), int(number(term.args[1]))
    ends = inner.ends(WHOLE) if inner is not None else None
    return ends is not None and all(_fits(AffineIndex(more=e // size), dtype) for e in ends)


def _spread(term: Node, like: Node) -> Node:
    """Returns a term of the index of a tile as a term of `like`, the broadcast of that tile."""
    if not term.tensor.rank:
        return term
    hint = TensorType(term.dtype, like.shape, "tile")
    if is_positions(term):
        axis = like.attrs["axes"][int(term.attrs["axis"])]
        return make("iota", (), {"axis": axis}, hint=hint)
    return make("broadcast", (term,), like.attrs, hint=hint)


def difference(node: Node) -> tuple[AffineIndex, bool] | None:
    """Returns an index such that a comparison holds if it is > 0, or >= 0 if the second item is
    True; None if the node is no comparison of affine integers.
    """
    facts = algebra_of(node)
    if not is_comparison(node) or node.args[0].dtype.kind not in "iu":
        return None
    low, high = (
        place_of(a, casts=True) for a in (node.args if facts.monotone[1] > 0 else node.args[::-1])
    )
    if low is None or high is None:
        return None
    return high.plus(low, -1), bool(facts.reflexive)


def is_comparison(node: Node) -> bool:
    """True if a node is a comparison."""
    return bool(node.args) and algebra_of(node).is_order


def _conditions(masks: Sequence[Node]) -> list[Node]:
    """Returns the comparisons and other conditions that masks are combined of by `and`, `or` and
    `not`.
    """
    found: dict[Node, None] = {}
    pending = list(masks)
    while pending:
        node = pending.pop()
        if is_condition(node) and node not in found:
            found[node] = None
            pending += node.args
    return list(found)


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
        nodes = _conditions(masks)
    for node in nodes:
        compared = difference(node)
        if compared is None or len(compared[0].terms) != 1:
            continue
        (place, holds_at_zero) = compared
        ((var, sign),) = place.terms.items()
        if abs(sign) != 1 or "extent" not in var.attrs:
            continue
        # sign * var + more > 0 changes where the sum goes from 0 to 1, with >= from -1 to 0
        first = (0 if holds_at_zero else 1) - place.more
        point = first if sign > 0 else 1 - first
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
    ends = found[0].ends(ranges) if found is not None else None
    if found is None or ends is None:
        return None
    least = 0 if found[1] else 1
    return True if ends[0] >= least else False if ends[1] < least else None
