"""Bounds of masks: for which iterations of a loop a comparison of positions holds.

    gt(%key, %row) with %key = 64 * %r.0 + iota, %row = 64 * %j.0 + iota:
        it holds for some element of a tile if 64 * %r.0 - 64 * %j.0 + 63 > 0
        it holds for all elements of a tile if 64 * %r.0 - 64 * %j.0 - 63 > 0

Positions are affine in loop variables and in the axes of a tile (`affine.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from stack.ir.builder import constant, converted, make
from stack.ir.node import Block, Node, topological
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
    repeated,
    repeats,
)
from stack.ir.types import DType
from stack.passes.steps.affine import AffineIndex, difference, is_condition, place_of
from stack.passes.steps.online import HidingMask
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
        ends = self.rest.ends()
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
    place = _compared(test, positive, data=True)
    is_exact = difference(test) is not None
    moving = [term for term in place.terms if var in term.vars] if place is not None else []
    if place is not None and len(moving) == 1 and moving[0] is not var:
        place = _without_quotient(place, moving[0]) or place
    found = place.along(var) if place is not None else None
    if found is None or not found[0] or (is_exact and not _is_affine(found[1])):
        return Bounds((), exact=False)
    return Bounds((Bound(*found),), is_exact)


def bounds_in(block: Block, mask: HidingMask) -> Bounds:
    """Returns the bounds on the iterations of a loop, from its body, in which a mask shows
    elements: those of all tiles, and of all iterations of the loops inside."""
    inner = frozenset(n.blocks[0].params[0] for n in block.all_nodes if is_loop(n))
    found, exact = bounds_of(mask.test, mask.shown == 1, block.params[0])
    return Bounds(tuple(bound._replace(inner=inner) for bound in found), exact)


def _compared(test: Node, positive: bool, data: bool = False) -> AffineIndex | None:
    """Returns an index that is >= 0 where a comparison of positions is true, or false if not
    `positive`; None for other nodes. `data`: whether integers from memory may be an operand."""
    found = difference(test, data)
    return found if found is None or positive else AffineIndex(more=-1).plus(found, -1)


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
    quotient, sign = repeated(term), place.terms[term]
    if not (divides(quotient) and is_number(quotient.args[1]) and abs(sign) == 1):
        return None
    size = int(number(quotient.args[1]))
    dividend = quotient.args[0]
    inner = place_of(dividend if quotient is term else term.rebuilt([dividend]))
    ends = inner.ends() if inner is not None else None
    if inner is None or ends is None or ends[0] < 0:
        return None
    rest = place.plus(AffineIndex({term: sign}), -1)
    more = AffineIndex().plus(rest, size).plus(inner, sign)
    return more if sign > 0 else more.plus(size - 1)


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
    term = repeated(term)
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
    if found is None or not _is_affine(found):
        return None
    dtype = next(term.dtype for term in found.terms)
    return make("ge", (extreme(found, 1, dtype), constant(0, dtype)))


def is_costly(test: Node, inside: Sequence[Node]) -> bool:
    """True if a condition is too expensive to be computed again: it reduces or loads."""
    computed = topological([test], set(inside).__contains__)
    return any(is_reduction(n) or is_contraction(n) or n.blocks for n in computed)
