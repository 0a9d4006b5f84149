"""Sums of products: what the streaming rewrite computes with.

A summand over the streamed axis k is kept as a sum of terms. A term is a number, factors without k
(which leave the reduction) and factors with k: values that no earlier state changes, masks,
exp(a - r), shifts (a - r), where r is made of earlier states, and ties [a = r] of a bound r of a.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeGuard

from stack.ir.node import Node
from stack.ir.traits import is_number, number, shows

K = "k"  # the name of the streamed axis
MAX_TERMS = 16  # of a normal form: products of sums multiply them out

Names = tuple[str, ...]  # a name for each axis of a value; equal names run together


class Refusal(Exception):
    """Why something does not stream; `reduction` is where it was found, if it was in one."""

    reduction: Node | None = None


class Value(NamedTuple):
    """A node of the function, and what its axes are in the stream."""

    node: Node
    names: Names

    @property
    def streams(self) -> bool:
        """Whether the value has the streamed axis."""
        return K in self.names

    @property
    def axis(self) -> int:
        """Position of the streamed axis."""
        return self.names.index(K)


@dataclass(frozen=True)
class Power:
    """A value, or one over it."""

    value: Value
    power: int = 1


@dataclass(frozen=True)
class Mask:
    """1 where the bool value is `keep`, else 0; what it multiplies may be nan where it is 0."""

    value: Value
    keep: bool


@dataclass(frozen=True)
class Stabilizer:
    """A value made of states that stays close to what it is taken of all along the pass.

    Attributes:
        kind: "bound" is the running max or min `source`, "mean" the running sum `source` over the
            running count, "ratio" the row `value`, which divides by the running sum `below`.
    """

    kind: Literal["bound", "mean", "ratio"]
    source: Node
    value: Value
    below: Value | None = None


@dataclass(frozen=True)
class Scaled:
    """An stabilizer times a number."""

    number: float
    stabilizer: Stabilizer


@dataclass(frozen=True)
class Exp:
    """exp or exp2 of (a - r). `bare`: it is nan where every a is infinite, and is meant to be."""

    op: str
    a: Sum
    r: tuple[Scaled, ...]
    bare: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Shift:
    """a - r, or a sum that no state changes, where r is empty."""

    a: Sum
    r: tuple[Scaled, ...]


@dataclass(frozen=True)
class Tie:
    """1 where a value is the running bound of it, else 0."""

    value: Value
    bound: Stabilizer


Factor = Power | Mask | Exp | Shift | Tie


def follows(factor: Factor) -> TypeGuard[Exp | Shift | Tie]:
    """Whether a factor changes with running values."""
    return isinstance(factor, Tie) or (isinstance(factor, Exp | Shift) and bool(factor.r))


@dataclass(frozen=True)
class Term:
    """number * rows * factors; rows have no streamed axis, factors have it."""

    number: float = 1.0
    rows: tuple[Power | Mask, ...] = ()
    factors: tuple[Factor, ...] = ()

    def times(self, other: Term) -> Term:
        """The product."""
        rows, factors = (*self.rows, *other.rows), (*self.factors, *other.factors)
        return Term(self.number * other.number, rows, factors)

    def scaled(self, number: float) -> Term:
        """This term times a number."""
        return replace(self, number=self.number * number)

    def without(self, part: Term) -> Term:
        """This term over rows and factors that are in it."""
        rows, factors = list(self.rows), list(self.factors)
        for row in part.rows:
            rows.remove(row)
        for factor in part.factors:
            factors.remove(factor)
        return Term(self.number, tuple(rows), tuple(factors))

    @property
    def is_row(self) -> bool:
        """Whether no factor has the streamed axis."""
        return not self.factors


Sum = tuple[Term, ...]


def product(a: Sum, b: Sum) -> Sum:
    """The product, multiplied out."""
    if len(a) * len(b) > MAX_TERMS:
        raise Refusal(f"a product has {len(a) * len(b)} terms, more than {MAX_TERMS}")
    return tuple(x.times(y) for x in a for y in b)


def common(terms: Sum) -> Term:
    """Rows and factors that all of several terms have."""
    if len(terms) < 2:
        return Term()
    rows, factors = Counter(terms[0].rows), Counter(terms[0].factors)
    for term in terms[1:]:
        rows, factors = rows & Counter(term.rows), factors & Counter(term.factors)
    return Term(1.0, tuple(rows.elements()), tuple(factors.elements()))


def negative(terms: Sum) -> Sum:
    """Minus the sum."""
    return tuple(t.scaled(-1.0) for t in terms)


@dataclass(frozen=True)
class State:
    """One running value: a reduction over k of a product of factors.

    Attributes:
        kind: of a `reduce`; "dot" for a dot, "count" for the number of elements so far, "pick" for
            the one element at `index`.
        names: axes of the state.
        space: axes of what is reduced; of a dot, axes of its first operand.
        right: factors of a dot's second operand, with the axes `right_space`.
        source: the reduction of the function that it is part of; it tells the element types.
    """

    kind: str
    names: Names
    space: Names
    factors: tuple[Factor, ...]
    source: Node = field(compare=False)
    right: tuple[Factor, ...] = ()
    right_space: Names = ()
    index: Value | None = None

    @property
    def all_factors(self) -> tuple[Factor, ...]:
        """Factors of both operands."""
        return (*self.factors, *self.right)


@dataclass(frozen=True)
class Part:
    """One term of a reduction's value: number * rows * state, nan where `bare` are infinite."""

    number: float
    rows: tuple[Power | Mask, ...]
    state: State | None
    bare: tuple[Stabilizer, ...] = ()


Form = tuple[Part, ...]


class Writer:
    """Terms as text, with the names that values have in the function."""

    def __init__(
        self, names: dict[Node, str], states: Sequence[State], after: Container[Node]
    ) -> None:
        self.names = names
        self.after = after  # what states are in
        self.place = {s: f"s{i}" for i, s in enumerate(states)}
        self.forms: dict[Node, str] = {}

    def node(self, node: Node) -> str:
        """A value: what it is made of states, or its name."""
        if node not in self.forms:
            self.forms[node] = self._formula(node)
        return self.forms[node]

    def _formula(self, node: Node) -> str:
        """A row as a formula where a state is in it."""
        if is_number(node):
            return f"{number(node):g}"
        if node in self.names and node not in self.after:
            return self.names[node]
        parts = [self.node(a) for a in node.args]
        sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}.get(node.op)
        if sign is not None:
            return f"({parts[0]} {sign} {parts[1]})"
        return parts[0] if shows(node) else f"{node.op}({', '.join(parts)})"

    def factor(self, factor: Factor) -> str:
        """One factor."""
        if isinstance(factor, Power):
            text = self.node(factor.value.node)
            return text if factor.power == 1 else f"1/{text}"
        if isinstance(factor, Mask):
            return f"[{'' if factor.keep else 'not '}{self.node(factor.value.node)}]"
        if isinstance(factor, Tie):
            return f"[{self.node(factor.value.node)} = {self.node(factor.bound.value.node)}]"
        inside = self.sum(factor.a) + "".join(self.stabilizer(s) for s in factor.r)
        return f"{factor.op}({inside})" if isinstance(factor, Exp) else f"({inside})"

    def stabilizer(self, scaled: Scaled) -> str:
        """One part of -r."""
        sign = " - " if scaled.number > 0 else " + "
        size = abs(scaled.number)
        stabilizer = scaled.stabilizer
        text = self.node(stabilizer.value.node) + ("/count" if stabilizer.kind == "mean" else "")
        return sign + (text if size == 1 else f"{size:g} {text}")

    def reference(self, r: Sequence[Scaled]) -> str:
        """r."""
        text = "".join(self.stabilizer(Scaled(-s.number, s.stabilizer)) for s in r)
        return text.removeprefix(" + ").strip()

    def product(self, number: float, factors: Sequence[Factor]) -> str:
        """A product."""
        shown = [self.factor(f) for f in factors]
        if number != 1 or not shown:
            shown.insert(0, f"{number:g}")
        return " ".join(shown)

    def sum(self, terms: Sum) -> str:
        """A sum."""
        text = ""
        for term in terms:
            sign = "-" if math.copysign(1.0, term.number) < 0 else "+"
            part = self.product(abs(term.number), (*term.rows, *term.factors))
            text += f" {sign} {part}" if text else f"{'-' if sign == '-' else ''}{part}"
        return text or "0"

    def state(self, state: State) -> str:
        """What a state is."""
        if state.kind == "count":
            return "count_k"
        summand = self.product(1.0, state.all_factors)
        if state.kind == "pick" and state.index is not None:
            return f"sum_k [k = {self.node(state.index.node)}] {summand}"
        return f"{'sum' if state.kind == 'dot' else state.kind}_k {summand}"

    def form(self, form: Form) -> str:
        """A reduction in terms of states."""
        text = ""
        for part in form:
            sign = "-" if part.number < 0 else "+"
            state = [self.place[part.state]] if part.state is not None else []
            shown = [*state, *(self.factor(r) for r in part.rows)]
            if abs(part.number) != 1 or not shown:
                shown.insert(0, f"{abs(part.number):g}")
            piece = " * ".join(shown).replace("* 1/", "/ ")
            text += f" {sign} {piece}" if text else f"{'-' if sign == '-' else ''}{piece}"
        return text or "0"
