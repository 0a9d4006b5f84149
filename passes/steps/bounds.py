"""Bounds of masks: for which iterations of a loop a comparison of positions holds.

    gt(%key, %row) with %key = 64 * %r.0 + iota, %row = 64 * %j.0 + iota:
        it holds for some element of a tile if 64 * %r.0 - 64 * %j.0 + 63 > 0
        it holds for all elements of a tile if 64 * %r.0 - 64 * %j.0 - 63 > 0

Positions are affine in loop variables and in the axes of a tile (`intervals.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from stack.ir.builder import constant, make
from stack.ir.forms import converted
from stack.ir.node import Block, Node, topological
from stack.ir.ops import algebra_of
from stack.ir.traits import (
    connective,
    divides,
    is_contraction,
    is_loop,
    is_number,
    is_positions,
    is_reduction,
    negates,
    number,
    repeats,
)
from stack.ir.types import DType
from stack.passes.steps.intervals import WHOLE, AffineIndex, difference, is_condition, place_of
from stack.passes.tiling.frame import static

LARGEST = 1 << 30  # the largest index that memory may give; no axis is as long


class Bound(NamedTuple):
    """A condition on a loop variable: `step * var + rest` is >= 0 where elements are visible, not
    masked.

    Attributes:
        step: the factor of the loop variable; not 0.
        rest: what does not depend on it; it may differ between the elements of a tile.
        inner: the variables of loops inside, over which elements differ too.
    """

    step: int
    rest: AffineIndex
    inner: frozenset[Node] = frozenset()

    def is_tail(self, count: int, size: int = 1) -> bool:
        """True if the bound hides parts of the first or the last block only, in all programs.

        Args:
            count: the iterations of the loop.
            size: the iterations of a block.
        """
        if not all(t in self.inner or is_positions(t) for t in self.rest.terms):
            return False
        ends = self.rest.ends(WHOLE)
        last = self.step * size * (count // size - 1)
        return ends is not None and min(0, last) + max(0, self.step * (size - 1)) + ends[1] >= 0


class Bounds(NamedTuple):
    """The bounds that a condition sets to a loop variable. `exact` says whether nothing but these
    bounds hides elements.
    """

    found: tuple[Bound, ...] = ()
    exact: bool = True


def bounds_of(test: Node, positive: bool, var: Node) -> Bounds:
    """Returns the bounds on a loop variable that follow from a condition on positions.

    Args:
        test: the condition.
        positive: False for the bounds that hold where the condition does not.
        var: the variable of the loop.
    """
    if repeats(test):
        return bounds_of(test.args[0], positive, var)
    if negates(test):
        return bounds_of(test.args[0], not positive, var)
    if connective(test) == (1 if positive else -1):
        parts = [bounds_of(a, positive, var) for a in test.args]
        return Bounds(tuple(b for p in parts for b in p.found), all(p.exact for p in parts))
    found = _compared(test, positive) or _compared_with_data(test, positive, var)
    bound = _bound(*found, var) if found is not None else None
    if found is None or bound is None:
        return Bounds((), exact=False)
    return Bounds((bound,), found[1])


def bounds_in(block: Block, test: Node, positive: bool) -> Bounds:
    """Returns the bounds on the iterations of a loop, from its body, for which `test` is true, or
    false if not `positive`. The bounds cover the elements of all tiles, and of all iterations of
    the loops inside."""
    inner = frozenset(n.blocks[0].params[0] for n in block.all_nodes if is_loop(n))
    found, exact = bounds_of(test, positive, block.params[0])
    return Bounds(tuple(bound._replace(inner=inner) for bound in found), exact)


def _compared(test: Node, positive: bool) -> tuple[AffineIndex, bool] | None:
    """Returns an index that is >= 0 where a comparison of positions is true, or false if not
    `positive`. The second item is True: there is no other condition. None for other nodes."""
    found = difference(test)
    return (_signed(*found, positive), True) if found is not None else None


def _signed(place: AffineIndex, holds_at_zero: bool, positive: bool) -> AffineIndex:
    """Returns an index that is >= 0 where the comparison `place > 0`, or `place >= 0` if
    `holds_at_zero`, is true; or where it is false, if not `positive`."""
    if not positive:
        place, holds_at_zero = place.times(-1), not holds_at_zero
    return place if holds_at_zero else AffineIndex(place.terms, place.more - 1)


def _compared_with_data(test: Node, positive: bool, var: Node) -> tuple[AffineIndex, bool] | None:
    """Returns an index that is >= 0 where a comparison of a position with an integer from memory,
    the same in all iterations, is true (or false if not `positive`). None for other nodes.
    """
    facts = algebra_of(test)
    if not facts.is_order or test.args[0].dtype.kind != "i":
        return None
    low, high = test.args if facts.monotone[1] > 0 else test.args[::-1]
    for value, other, sign in ((low, high, 1), (high, low, -1)):
        place = place_of(other, casts=True)
        if place is not None and place_of(value) is None and var not in value.vars:
            more = place.plus(AffineIndex({value: 1}), -1).times(sign)
            return _signed(more, bool(facts.reflexive), positive), False
    return None


def _bound(place: AffineIndex, exact: bool, var: Node) -> Bound | None:
    """Converts the condition `place >= 0` to a bound of a loop variable; None if it is not affine
    in that variable.

    Args:
        place: the index.
        exact: whether its other terms have to be affine in the axes of the tile.
        var: the variable.
    """
    moving = [term for term in place.terms if var in term.vars]
    if len(moving) == 1 and moving[0] is not var:
        place = _without_quotient(place, moving[0]) or place
        moving = [term for term in place.terms if var in term.vars]
    if moving != [var]:
        return None
    if exact and not _is_affine(place):
        return None
    rest = AffineIndex({t: c for t, c in place.terms.items() if t is not var}, place.more)
    return Bound(place.terms[var], rest)


def _is_affine(place: AffineIndex) -> bool:
    """True if the terms of an index are positions and scalars that cannot overflow."""
    terms = place.terms
    return all((not t.tensor.rank or is_positions(t)) and t.dtype.bits >= 32 for t in terms)


def _without_quotient(place: AffineIndex, term: Node) -> AffineIndex | None:
    """Rewrites an index with a quotient, `x // n + rest`, to one without it that is >= 0 for the
    same positions: `x + n * rest`; likewise for the negative quotient. The quotient may be one of a
    tile, such as block numbers of positions, and broadcast. None for other terms, and if n is no
    constant or x may be negative.
    """
    quotient, sign = _repeated(term), place.terms[term]
    if not (divides(quotient) and is_number(quotient.args[1]) and abs(sign) == 1):
        return None
    size = int(number(quotient.args[1]))
    inner = place_of(_repeats_as(quotient.args[0], term))
    ends = inner.ends({}) if inner is not None else None
    if inner is None or ends is None or ends[0] < 0:
        return None
    rest = AffineIndex({t: c for t, c in place.terms.items() if t is not term}, place.more).times(
        size
    )
    more = rest.plus(inner.times(sign))
    return more if sign > 0 else AffineIndex(more.terms, more.more + size - 1)


def _repeated(node: Node) -> Node:
    """Skips broadcasts: returns the node whose elements they repeat."""
    while repeats(node):
        (node,) = node.args
    return node


def _repeats_as(node: Node, like: Node) -> Node:
    """Builds the broadcasts around a node that `like` has around another node of its shape."""
    if not repeats(like):
        return node
    inner = _repeats_as(node, like.args[0])
    return make("broadcast", (inner,), like.attrs, hint=like.tensor.with_dtype(node.dtype))


def extreme(
    place: AffineIndex, sign: int, dtype: DType, inner: Collection[Node] = frozenset()
) -> Node:
    """Builds the greatest (sign 1) or the smallest (-1) value that an index has over the elements
    of a tile.

    Args:
        place: the index.
        sign: which of the two.
        dtype: the type of indices.
        inner: variables of loops, over whose iterations the index is greatest or smallest too.
    """
    more, terms = place.more, dict[Node, int]()
    for term, count in place.terms.items():
        if term in inner or is_positions(term):
            size = term.attrs["extent"] if term in inner else term.shape[int(term.attrs["axis"])]
            more += count * (static(size) - 1) if count * sign > 0 else 0
        else:
            kind = "max" if count * sign > 0 else "min"
            scalar = _extreme_of(term, kind, count, dtype)
            terms[scalar] = terms.get(scalar, 0) + count
    return AffineIndex(terms, more).node(dtype)


def _extreme_of(term: Node, kind: str, count: int, dtype: DType) -> Node:
    """Builds the greatest or smallest element of a tile, as `kind` says, converted to an index
    type; a scalar is itself that element.

    Integers from memory may be as large as their type allows. They are clipped, so that `count`
    times the element plus positions is in the range of an index.
    """
    term = _repeated(term)
    is_data = place_of(term) is None
    if term.tensor.rank:
        axes = tuple(range(term.tensor.rank))
        term = make("reduce", (term,), {"axes": axes, "kind": kind})
    if is_data and term.dtype.bits >= 32:
        most = LARGEST // abs(count)
        term = make(
            "min", (make("max", (term, constant(-most, term.dtype))), constant(most, term.dtype))
        )
    return converted(term, dtype)


# ---- whether a condition can hold


def can_hold(test: Node, positive: bool = True) -> Node | None:
    """Builds a cheap scalar test, once for a whole tile, that is False only if a condition is true
    (or, if not `positive`, false) for no element of the tile.

    None if no such test exists without computing the condition for each element.
    """
    if repeats(test):
        return can_hold(test.args[0], positive)
    if negates(test):
        return can_hold(test.args[0], not positive)
    if not test.tensor.rank:
        return test if positive else make("not", (test,))
    if connective(test):
        parts = [can_hold(a, positive) for a in test.args]
        known = [p for p in parts if p is not None]
        needs_all = (connective(test) > 0) == positive
        if not known or (not needs_all and len(known) < len(parts)):
            return None
        return make("and" if needs_all else "or", known) if len(known) > 1 else known[0]
    found = _compared(test, positive) if is_condition(test) else None
    if found is None or not _is_affine(found[0]):
        return None
    dtype = _index_type(found[0])
    return make("ge", (extreme(found[0], 1, dtype), constant(0, dtype)))


def _index_type(place: AffineIndex) -> DType:
    """Returns the element type that the terms of an index have."""
    return next(term.dtype for term in place.terms)


def is_costly(test: Node, inside: Sequence[Node]) -> bool:
    """True if a condition is too expensive to be computed again: it reduces or loads."""
    computed = topological([test], set(inside).__contains__)
    return any(is_reduction(n) or is_contraction(n) or n.blocks for n in computed)
