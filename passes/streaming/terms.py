"""Sums of products, the algebra of the streaming rewrite.

A summand over the streamed axis k is a sum of terms. A term is a number, factors without k (which
leave the reduction) and factors with k. The latter are values that no earlier state changes, masks,
exp(a - r), shifts (a - r), and ties [a = r] of a bound r of a. Here r is computed from earlier
states.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeGuard

from stack.ir.node import Node

K = "k"  # the name of the streamed axis
MAX_TERMS = 16  # most terms of a normal form: products of sums are multiplied out

Names = tuple[str, ...]  # a name for each axis of a value; axes of one name are one axis


class Refusal(Exception):
    """The reason why something does not stream; `reduction` is the one concerned, if any."""

    reduction: Node | None = None


class DotsInMemory(Refusal):
    """The reason why the matmuls of a stream are cheaper as kernels of their own."""


class TermValue(NamedTuple):
    """A node of the function, with names for its axes in the stream."""

    node: Node
    names: Names

    @property
    def streams(self) -> bool:
        """True if the value has the streamed axis."""
        return K in self.names

    @property
    def axis(self) -> int:
        """Returns the position of the streamed axis."""
        return self.names.index(K)


@dataclass(frozen=True)
class Power:
    """A factor of a term: a value, or 1 / value if `power` is -1."""

    value: TermValue
    power: int = 1


@dataclass(frozen=True)
class MaskFactor:
    """1 where the bool value is `keep`, else 0; the product with it is 0 there even for nan."""

    value: TermValue
    keep: bool


@dataclass(frozen=True)
class Stabilizer:
    """A value of states that remains close to the elements that it is subtracted from.

    Attributes:
        kind: "bound" is the running max or min `source`, "mean" the running sum `source` over the
            running count, "ratio" the row `value`, which divides by the running sum `below`.
        source: the reduction in the function.
        value: the row in the function.
        below: the divisor of a "ratio".
    """

    kind: Literal["bound", "mean", "ratio"]
    source: Node
    value: TermValue
    below: TermValue | None = None


@dataclass(frozen=True)
class ScaledStabilizer:
    """A stabilizer times a number."""

    number: float
    stabilizer: Stabilizer


@dataclass(frozen=True)
class Exp:
    """A factor of a term: exp or exp2 of (a - r). `bare`: it is nan if every a is infinite, as in
    the function."""

    op: str
    a: Sum
    r: tuple[ScaledStabilizer, ...]
    bare: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Shift:
    """A factor of a term: a - r; if r is empty, it is a sum that no state changes."""

    a: Sum
    r: tuple[ScaledStabilizer, ...]


@dataclass(frozen=True)
class TieFactor:
    """1 where a value equals its running bound, else 0."""

    value: TermValue
    bound: Stabilizer


Factor = Power | MaskFactor | Exp | Shift | TieFactor


def follows(factor: Factor) -> TypeGuard[Exp | Shift | TieFactor]:
    """True if a factor contains running values (states), so that the loop has to correct earlier
    sums of it when they change."""
    return isinstance(factor, TieFactor) or (isinstance(factor, Exp | Shift) and bool(factor.r))


@dataclass(frozen=True)
class Term:
    """number * rows * factors; rows lack the streamed axis, factors have it."""

    number: float = 1.0
    rows: tuple[Power | MaskFactor, ...] = ()
    factors: tuple[Factor, ...] = ()

    def times(self, other: Term) -> Term:
        """Returns the product of two terms."""
        rows, factors = (*self.rows, *other.rows), (*self.factors, *other.factors)
        return Term(self.number * other.number, rows, factors)

    def scaled(self, number: float) -> Term:
        """Returns this term times a number."""
        return replace(self, number=self.number * number)

    def without(self, part: Term) -> Term:
        """Returns this term divided by the rows and factors of `part`, all of which it contains;
        the number stays."""
        rows, factors = list(self.rows), list(self.factors)
        for row in part.rows:
            rows.remove(row)
        for factor in part.factors:
            factors.remove(factor)
        return Term(self.number, tuple(rows), tuple(factors))

    @property
    def is_row(self) -> bool:
        """True if no factor has the streamed axis."""
        return not self.factors


Sum = tuple[Term, ...]


def product(a: Sum, b: Sum) -> Sum:
    """Returns the product of two sums, multiplied out to one sum of terms. Raises Refusal if it has
    too many."""
    if len(a) * len(b) > MAX_TERMS:
        raise Refusal(f"a product has {len(a) * len(b)} terms, more than {MAX_TERMS}")
    return tuple(x.times(y) for x in a for y in b)


def common(terms: Sum) -> Term:
    """Returns a term of the rows and factors that all `terms` contain; the term 1 for fewer than
    two."""
    if len(terms) < 2:
        return Term()
    rows, factors = Counter(terms[0].rows), Counter(terms[0].factors)
    for term in terms[1:]:
        rows, factors = rows & Counter(term.rows), factors & Counter(term.factors)
    return Term(1.0, tuple(rows.elements()), tuple(factors.elements()))


@dataclass(frozen=True)
class State:
    """One running value: a reduction over k of a product of factors.

    Attributes:
        kind: of a `reduce`; "dot" for a dot, "count" for the number of elements so far, "pick" for
            the one element at `index`.
        names: axes of the state.
        space: axes of the summand; of a dot, axes of its first operand.
        factors: factors of the summand, or of a dot's first operand.
        source: the reduction of the function that it is part of, which has the element types.
        right: factors of a dot's second operand, with the axes `right_space`.
        index: the index of a "pick".
    """

    kind: str
    names: Names
    space: Names
    factors: tuple[Factor, ...]
    source: Node = field(compare=False)
    right: tuple[Factor, ...] = ()
    right_space: Names = ()
    index: TermValue | None = None

    @property
    def all_factors(self) -> tuple[Factor, ...]:
        """Returns the factors of both operands."""
        return (*self.factors, *self.right)


@dataclass(frozen=True)
class SummandPart:
    """One term of a reduction's value: number * rows * state, nan if `bare` are infinite."""

    number: float
    rows: tuple[Power | MaskFactor, ...]
    state: State | None
    bare: tuple[Stabilizer, ...] = ()


Form = tuple[SummandPart, ...]
