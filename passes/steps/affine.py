"""Affine indices: an integer as a sum of loop variables and other terms with constant coefficients.

Loop variables and positions along the axis of a tile have bounds: interval arithmetic tells where
an index is, and dependence analysis whether two iterations meet there. A comparison is constant if
the interval of the difference of its operands lies on one side of 0.

Source: the simplifier and loop partitioning of Halide (Ragan-Kelley et al., PLDI 2013); U.
Banerjee, Dependence Analysis for Supercomputing (1988).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from stack.ir.bounds import Integers
from stack.ir.builder import constant, make
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node, topological
from stack.ir.ops import algebra_of
from stack.ir.traits import (
    connective,
    converts,
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

    def plus(self, other: AffineIndex | int, factor: int = 1) -> AffineIndex:
        """Returns the sum of this index and a multiple of another one, or of a number."""
        if isinstance(other, int):
            return AffineIndex(self.terms, self.more + factor * other)
        both = {**self.terms, **other.terms}
        terms = {n: self.terms.get(n, 0) + factor * other.terms.get(n, 0) for n in both}
        held = {n: count for n, count in terms.items() if count}
        return AffineIndex(held, self.more + factor * other.more)

    def along(self, var: Node) -> tuple[int, AffineIndex] | None:
        """Returns (factor, rest) of the index `factor * var + rest`; None for others."""
        rest = {term: count for term, count in self.terms.items() if term is not var}
        if any(var in term.vars for term in rest):
            return None
        return self.terms.get(var, 0), AffineIndex(rest, self.more)

    def node(self, dtype: DType) -> Node:
        """Builds the node that computes the index: `c0 * v0 + c1 * v1 + ... + c`."""
        made: Node | None = None
        for node, count in self.terms.items():
            term = node if count == 1 else make("mul", (node, constant(count, dtype)))
            made = term if made is None else make("add", (made, term))
        if made is None:
            return constant(self.more, dtype)
        return make("add", (made, constant(self.more, dtype))) if self.more else made

    def ends(self, ranges: Ranges = WHOLE) -> tuple[int, int] | None:
        """Returns the least and the greatest value; None if some term has no bounds."""
        low = high = self.more
        for node, count in self.terms.items():
            last = last_of(node)
            if last is None:
                return None
            ends = [count * end for end in ranges.get(node, (0, last))]
            low, high = low + min(ends), high + max(ends)
        return low, high


def last_of(node: Node) -> int | None:
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
    found = _places(node, casts, wraps=True)
    is_data = node not in found or any(a not in found for n in found for a in n.args)
    return None if is_data else found[node]


def index_of(node: Node) -> AffineIndex:
    """Returns an index of memory as `place_of` does, with data as a term: indices do not
    overflow.
    """
    return _places(node, casts=False, wraps=False).get(node) or AffineIndex({node: 1})


def start_along(index: Node, var: Node, step: int = 1) -> AffineIndex | None:
    """Returns the start of an index `start + step * var`; None for other indices."""
    found = index_of(index).along(var)
    return found[1] if found is not None and found[0] == step else None


def grows(node: Node, axis: Node) -> bool:
    """True if an integer is greater in each iteration along `axis` than in the ones before."""
    place = place_of(node, casts=True)
    found = place.along(axis) if place is not None else None
    return found is not None and found[0] > 0


def folded(_: Node, node: Node) -> Node:
    """Returns an integer without constants that do not matter: 2 * 3 is 6, x + 0 is x. The first
    argument is the node before its operands were replaced.
    """
    known = tuple(map(is_number, node.args))
    if not any(known) or not isinstance(node.type, TensorType) or node.dtype.kind != "i":
        return node
    if all(known):
        place = place_of(node)
        return node if place is None or place.terms else constant(place.more, node.dtype)
    if signs(node) != (1, 1):
        return node
    zero, other = node.args if known[0] else node.args[::-1]
    return other if number(zero) == 0 and other.type == node.type else node


def is_apart(index: Node, var: Node, inner: Collection[Node], size: int) -> bool:
    """True if accesses to `size` elements from an index on are disjoint for different iterations
    of the loop over `var`, whatever the iterations of the loops over `inner` inside of it are.
    """
    found = index_of(index).along(var)
    if found is None or not found[0]:
        return False
    step, spans, integers = abs(found[0]), list[tuple[int, int | None]](), Integers()
    for term, count in found[1].terms.items():
        if term.tensor.rank or not term.vars.isdisjoint(inner):
            known = integers.range(term)
            spans.append((abs(count), None if known is None else known[1] - known[0]))
    if any(count < step and span is None for count, span in spans):
        return False
    small = sum(count * (span or 0) for count, span in spans if count < step) + size - 1
    large = [count for count, span in spans if count >= step and span != 0]
    # large terms shift the index by multiples of their gcd, which exceeds the span of all of these
    return small < step and (
        not large or gcd(*large) > step * (int(var.attrs["extent"]) - 1) + small
    )


def _places(node: Node, casts: bool, wraps: bool) -> Mapping[Node, AffineIndex]:
    """Returns the affine form of the nodes that compute an index, operands first; data becomes a
    term, and with `wraps` what may overflow. Empty if the index is data, or if there are too many
    nodes.
    """
    found: dict[Node, AffineIndex] = {}
    nodes = topological([node], _is_index)
    for one in nodes if len(nodes) <= MOST else ():
        parts = [found.get(a) or AffineIndex({a: 1}) for a in one.args]
        found[one] = _place(one, parts, casts, wraps)
    return found


def _is_index(node: Node) -> bool:
    """True if a node is an integer that is computed, not loaded."""
    if not isinstance(node.type, TensorType) or node.dtype.kind not in "iu" or node.blocks:
        return False
    return not is_load(node) and (bool(node.args) or is_number(node) or last_of(node) is not None)


def _place(node: Node, parts: Sequence[AffineIndex], casts: bool, wraps: bool) -> AffineIndex:
    """Returns the affine form of one index node, given those of its operands."""
    if is_number(node):
        return AffineIndex(more=int(number(node)))
    if repeats(node):
        terms = {_spread(term, node): count for term, count in parts[0].terms.items()}
        return AffineIndex(terms, parts[0].more)
    if casts and converts(node) and parts and node.dtype.kind == "i":
        source = node.args[0].dtype
        is_wider = node.dtype.bits > source.bits or node.dtype == source
        if is_wider or Integers().range(node) is not None:
            return parts[0]  # it keeps all values
    taken = signs(node)
    made: AffineIndex | None = None
    if taken and len(parts) == 2:
        made = parts[0].plus(parts[1], taken[1])
    elif multiplies(node):
        factors = zip(parts, parts[::-1], strict=True)
        made = next((AffineIndex().plus(o, f.more) for f, o in factors if not f.terms), None)
    elif node.op in ("div", "rem") and is_number(node.args[1]):
        made = _digit(node, parts[0])
    if made is None or (wraps and not _fits(made, node.dtype)):
        return AffineIndex({node: 1})
    return made


def _digit(node: Node, place: AffineIndex) -> AffineIndex | None:
    """Returns the quotient or the remainder of an index by a number: of 128 * l + j, with j in [0,
    128), they are l and j. None if they do not follow from the bounds of its terms.
    """
    by = int(number(node.args[1]))
    if by < 1:
        return None
    whole = {term: count // by for term, count in place.terms.items() if count % by == 0}
    quotient = AffineIndex(whole, place.more // by)
    rest = place.plus(quotient, -by)
    least, ends = quotient.ends(), rest.ends()
    if least is None or ends is None or least[0] < 0 or ends[0] < 0 or ends[1] >= by:
        return None
    return quotient if node.op == "div" else rest


def _fits(place: AffineIndex, dtype: DType) -> bool:
    """True if no value of an index overflows the integer type `dtype`. Terms without known bounds
    are taken to be small.
    """
    ends = place.ends(WHOLE)
    if ends is None:
        return dtype.kind == "i" and dtype.bits >= 32
    most = 1 << (dtype.bits - (dtype.kind == "i"))
    return (-most if dtype.kind == "i" else 0) <= ends[0] and ends[1] < most


def _spread(term: Node, like: Node) -> Node:
    """Returns a term of the index of a tile as a term of `like`, the broadcast of that tile."""
    if not term.tensor.rank:
        return term
    hint = TensorType(term.dtype, like.shape, "tile")
    if is_positions(term):
        axis = like.attrs["axes"][int(term.attrs["axis"])]
        return make("iota", (), {"axis": axis}, hint=hint)
    return make("broadcast", (term,), like.attrs, hint=hint)


def difference(node: Node, data: bool = False) -> AffineIndex | None:
    """Returns an index that is at least 0 where a comparison of integers is true, and negative
    where it is false; None if the node is no such comparison, or its operands are not affine.

    `data`: whether signed data may be an operand, which becomes a term.
    """
    facts = algebra_of(node)
    if not (node.args and facts.is_order and node.args[0].dtype.kind in "iu"):
        return None
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
