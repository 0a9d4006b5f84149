"""Step 1 of the streaming rewrite: every reduction over k as a sum of rows times states.

Sums and dots are linear: they are taken term by term, and what has no k leaves the reduction, so
that sum(exp(s - m) / l * v) is sum(exp(s - m) * v) / l. Casts to 16-bit floats in between are
dropped: the running values are wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product as choices

from stack.ir.axes import parse_rule
from stack.ir.builder import constant, make
from stack.ir.node import Node
from stack.passes.stream_region import MOVES, Region
from stack.passes.stream_terms import (
    Anchor,
    Exp,
    Factor,
    Form,
    K,
    Mask,
    Names,
    Part,
    Power,
    Refusal,
    Scaled,
    Shift,
    State,
    Sum,
    Term,
    Value,
    negative,
    product,
)
from stack.rewrite.pattern import splat

LINEAR = ("sum", "dot", "pick")


class Normal:
    """The members of a region in normal form.

    Attributes:
        forms: what each reduction is, in terms of states.
        states: the states, each after those that it depends on.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.graph = region.graph
        self.forms: dict[Node, Form] = {}
        self.states: list[State] = []
        self._sums: dict[Value, Sum] = {}
        for node in sorted(region.members, key=lambda n: self.graph.place[n]):
            try:
                self.forms[node] = tuple(self._reduction(node))
            except Refusal as refusal:
                refusal.reduction = node
                raise

    # ---- expressions

    def sum(self, value: Value) -> Sum:
        """A value as a sum of terms."""
        if value not in self._sums:
            self._sums[value] = self._sum(value)
        return self._sums[value]

    def _sum(self, value: Value) -> Sum:
        node = value.node
        number = splat(node)
        if isinstance(number, int | float) and math.isfinite(number):
            return (Term(float(number)),) if number else ()
        if not self.region.depends(value):
            power = Power(value)
            return (Term(1.0, (), (power,)) if value.streams else Term(1.0, (power,)),)
        if node in self.region.members:
            return (Term(1.0, (Power(value),)),)
        operands = self.region.operand_values(value)
        if node.op in MOVES:
            return self.sum(operands[0])
        rule = getattr(self, f"_{node.op}", None)
        if rule is not None:
            return rule(value, operands)
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        raise Refusal(
            f"{self.graph.name(node)} is {node.op!r} of a value that an earlier reduction changes"
        )

    def _add(self, value: Value, operands: Sequence[Value]) -> Sum:
        return self.sum(operands[0]) + self.sum(operands[1])

    def _sub(self, value: Value, operands: Sequence[Value]) -> Sum:
        return self.sum(operands[0]) + negative(self.sum(operands[1]))

    def _neg(self, value: Value, operands: Sequence[Value]) -> Sum:
        return negative(self.sum(operands[0]))

    def _mul(self, value: Value, operands: Sequence[Value]) -> Sum:
        if not value.streams and all(splat(v.node) is None for v in operands):
            return (Term(1.0, (Power(value),)),)
        return product(self.grouped(operands[0]), self.grouped(operands[1]))

    def _div(self, value: Value, operands: Sequence[Value]) -> Sum:
        above, below = operands
        number = splat(below.node)
        if isinstance(number, int | float) and number:
            return tuple(t.scaled(1 / number) for t in self.sum(above))
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        if not below.streams:
            return product(self.grouped(above), (Term(1.0, (Power(below, -1),)),))
        inner = self.row_behind(below)
        if inner is not None:
            return product(self.grouped(above), (Term(1.0, (Power(inner, -1),)),))
        if self.region.depends(below):
            raise Refusal(
                f"{self.graph.name(value.node)} divides by a value that an earlier reduction"
                " changes"
            )
        return product(self.grouped(above), (Term(1.0, (), (Power(below, -1),)),))

    def row_behind(self, value: Value) -> Value | None:
        """The row that a value repeats along k, if it does."""
        while value.streams and value.node.op in (*MOVES, "cast"):
            if not self.region.passes(value):
                return None
            (value,) = self.region.operand_values(value)
        return None if value.streams else value

    def _cast(self, value: Value, operands: Sequence[Value]) -> Sum:
        if not value.node.dtype.is_float or not operands[0].node.dtype.is_float:
            raise Refusal(f"{self.graph.name(value.node)} is a cast to {value.node.dtype}")
        return self.sum(operands[0])

    def _pow(self, value: Value, operands: Sequence[Value]) -> Sum:
        degree = splat(operands[1].node)
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        if degree not in (2, 3, 4):
            raise Refusal(f"{self.graph.name(value.node)} is a power other than 2, 3 and 4")
        base = self.grouped(operands[0])
        result = base
        for _ in range(int(degree) - 1):
            result = product(result, base)
        return result

    def _select(self, value: Value, operands: Sequence[Value]) -> Sum:
        test, yes, no = operands
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        found: list[Term] = []
        for branch, keep in ((yes, True), (no, False)):
            found.extend(product(self.grouped(branch), (self._masked(value, test, keep),)))
        return tuple(found)

    def _masked(self, value: Value, test: Value, keep: bool) -> Term:
        row = self.row_behind(test)
        if row is not None:
            return Term(1.0, (Mask(row, keep),))
        if self.region.depends(test):
            raise Refusal(
                f"{self.graph.name(value.node)} chooses by a value that an earlier reduction"
                " changes"
            )
        return Term(1.0, (), (Mask(test, keep),))

    def _exp(self, value: Value, operands: Sequence[Value]) -> Sum:
        """exp(a - r) * exp(rows), where r is a running bound of something."""
        node = value.node
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        inner = operands[0]
        while inner.node.op in ("cast", *MOVES) and inner.node not in self.region.held:
            (inner,) = self.region.operand_values(inner)
        if inner.node.op == "select":
            return self._exp_of_choice(value, inner)
        a, rows, rest = self._split(self.sum(inner))
        if rest:
            raise Refusal(f"{self.graph.name(node)} is {node.op!r} of a product with a state")
        bounds: list[Scaled] = []
        factors: list[Power | Mask] = []
        for number, row in rows:
            anchor = self.anchor(row)
            if anchor is None or anchor.kind != "bound":
                factors.append(Power(self._row_exp(node.op, number, row)))
                continue
            if (anchor.source.attrs["kind"] == "max") != (number < 0):
                raise Refusal(
                    f"{self.graph.name(node)} grows with {self.graph.name(row.node)}, which is no"
                    " bound of it"
                )
            bounds.append(Scaled(-number, anchor))
        if not bounds:
            raise Refusal(
                f"{self.graph.name(node)} is {node.op!r} of a - r with no running max or min in r"
            )
        return (Term(1.0, tuple(factors), (Exp(node.op, a, tuple(bounds)),)),)

    _exp2 = _exp

    def _exp_of_choice(self, value: Value, choice: Value) -> Sum:
        test, yes, no = self.region.operand_values(choice)
        found: list[Term] = []
        for branch, keep in ((yes, True), (no, False)):
            if splat(branch.node) == -math.inf:
                continue
            made = Value(make(value.node.op, (branch.node,)), branch.names)
            if not branch.node.shape:
                raise Refusal(f"{self.graph.name(choice.node)} chooses a number that is no mask")
            terms = self._exp(made, (branch,)) if self.region.depends(branch) else None
            if terms is None:
                raise Refusal(f"{self.graph.name(choice.node)} chooses values of other scale")
            found.extend(product(terms, (self._masked(choice, test, keep),)))
        return tuple(found)

    def _row_exp(self, op: str, number: float, row: Value) -> Value:
        inner = row.node
        if number != 1:
            inner = make("mul", (inner, constant(number, inner.dtype)))
        return Value(make(op, (inner,)), row.names)

    # ---- a - r

    def _split(self, terms: Sum) -> tuple[Sum, list[tuple[float, Value]], Sum]:
        """What no state changes, single rows that states are in with their numbers, the rest."""
        fixed: list[Term] = []
        rows: list[tuple[float, Value]] = []
        rest: list[Term] = []
        for term in terms:
            parts = (*term.rows, *term.factors)
            if all(self.is_fixed(f) for f in parts):
                fixed.append(term)
                continue
            alone = term.rows[0] if term.is_row and len(term.rows) == 1 else None
            if isinstance(alone, Power) and alone.power == 1:
                rows.append((term.number, alone.value))
            else:
                rest.append(term)
        return tuple(fixed), rows, tuple(rest)

    def is_fixed(self, factor: Factor) -> bool:
        """Whether no state is in a factor."""
        return isinstance(factor, Power) and not self.region.depends(factor.value)

    def grouped(self, value: Value) -> Sum:
        """The sum with a - r together, where r follows a along the pass."""
        terms = self.sum(value)
        if not value.streams:
            return terms
        fixed, rows, rest = self._split(terms)
        if all(t.is_row for t in fixed):
            return terms
        anchored: list[Scaled] = []
        others: list[Term] = []
        for number, row in rows:
            anchor = self.anchor(row)
            if anchor is None:
                others.append(Term(number, (Power(row),)))
            else:
                anchored.append(Scaled(-number, anchor))
        if not anchored:
            return terms
        return (Term(1.0, (), (Shift(fixed, tuple(anchored)),)), *others, *rest)

    def anchor(self, row: Value) -> Anchor | None:
        """Whether a row is a running bound or a running mean."""
        inner, guarded = self._unguarded(row.node)
        form = self.forms.get(inner)
        if form is not None and inner.op == "reduce" and inner.attrs["kind"] in ("max", "min"):
            plain = len(form) == 1 and form[0].number == 1 and not form[0].rows
            return Anchor("bound", inner, row, guarded) if plain else None
        source, number = self._multiple(row.node)
        form = self.forms.get(source)
        extent = self.region.extent
        if form is None or not isinstance(extent, int) or source.op != "reduce":
            return None
        alone = len(form) == 1 and form[0].number == 1 and not form[0].rows
        is_mean = abs(number * extent - 1) < 1e-6 and source.attrs["kind"] == "sum"
        return Anchor("mean", source, row) if alone and is_mean else None

    def _unguarded(self, node: Node) -> tuple[Node, bool]:
        """A row without what only replaces infinities."""
        guarded = False
        while True:
            if node.op in ("cast", *MOVES) or (
                node.op in ("max", "min") and splat(node.args[1]) in (-math.inf, math.inf)
            ):
                node = node.args[0]
            elif node.op == "select" and _tests_infinity(node.args[0], node.args[1]):
                node, guarded = node.args[1], True
            elif node.op == "select" and _is_infinite(node.args[0], node.args[2]):
                node, guarded = node.args[2], True
            else:
                return node, guarded

    def _multiple(self, node: Node) -> tuple[Node, float]:
        """A row as a number times another."""
        number = 1.0
        while True:
            other = splat(node.args[1]) if len(node.args) == 2 else None
            if node.op in ("cast", *MOVES):
                node = node.args[0]
            elif node.op == "mul" and isinstance(other, float):
                node, number = node.args[0], number * other
            elif node.op == "div" and isinstance(other, float) and other:
                node, number = node.args[0], number / other
            else:
                return node, number

    # ---- reductions

    def _reduction(self, node: Node) -> list[Part]:
        region = self.region
        operands = region.operands[node]
        names = region.atoms(region.members[node])
        if node.op == "gather":
            return self._pick(node, operands)
        if node.op == "dot":
            return self._dot(node, operands, names)
        kind = node.attrs["kind"]
        operand = operands[0]
        if not region.depends(operand):
            return [Part(1.0, (), self.enter(self._state(node, kind, operand)))]
        if kind == "sum":
            return [
                self._linear(t, State("sum", names, region.atoms(operand.names), t.factors, node))
                for t in self.grouped(operand)
            ]
        if kind in ("max", "min"):
            return self._bound(node, kind, operand)
        raise Refusal(
            f"{self.graph.name(node)} is the {kind} of a value that an earlier reduction changes"
        )

    def _state(self, node: Node, kind: str, operand: Value) -> State:
        space = self.region.atoms(operand.names)
        names = tuple(n for n in space if n != K)
        return State(kind, names, space, (Power(operand),), node)

    def _linear(self, term: Term, state: State) -> Part:
        if not term.is_row:
            return Part(term.number, term.rows, self.enter(state))
        if not isinstance(self.region.extent, int):
            raise Refusal("a sum of ones along an axis of symbolic size")
        return Part(term.number * self.region.extent, term.rows, None)

    def _dot(self, node: Node, operands: tuple[Value, ...], names: Names) -> list[Part]:
        left, right = operands
        spaces = self.region.atoms(left.names), self.region.atoms(right.names)
        found: list[Part] = []
        for a, b in choices(self.grouped(left), self.grouped(right)):
            number, rows = a.number * b.number, (*a.rows, *b.rows)
            term = Term(number, rows, (*a.factors, *b.factors))
            if a.is_row or b.is_row:
                space = spaces[1] if a.is_row else spaces[0]
                own = tuple(n for n in space if n != K)
                state = State("sum", own, space, term.factors, node)
            else:
                state = State("dot", names, spaces[0], a.factors, node, b.factors, spaces[1])
            found.append(self._linear(term, state))
        return found

    def _bound(self, node: Node, kind: str, operand: Value) -> list[Part]:
        fixed, rows, rest = self._split(self.sum(operand))
        if rest or all(t.is_row for t in fixed):
            raise Refusal(
                f"{self.graph.name(node)} is the {kind} of a product with an earlier reduction"
            )
        if len(fixed) != 1 or fixed[0].number != 1 or len(fixed[0].factors) != 1:
            raise Refusal(f"{self.graph.name(node)} is the {kind} of a sum")
        (factor,) = fixed[0].factors
        if not isinstance(factor, Power) or factor.power != 1 or fixed[0].rows:
            raise Refusal(f"{self.graph.name(node)} is the {kind} of a product")
        first = Part(1.0, (), self.enter(self._state(node, kind, factor.value)))
        return [first, *(Part(number, (Power(row),), None) for number, row in rows)]

    def _pick(self, node: Node, operands: tuple[Value, ...]) -> list[Part]:
        source, index = operands
        rule = parse_rule(node.attrs["rule"])
        own = [a.names[0] for a in rule.inputs[0] if not a.mark]
        extra = [
            size
            for axis, size in zip(rule.outputs[0], node.shape, strict=True)
            if axis.names[0] not in own
        ]
        if any(size != 1 for size in extra):
            raise Refusal(f"{self.graph.name(node)} picks several elements along the axis")
        space = self.region.atoms(source.names)
        names = tuple(n for n in space if n != K)
        found: list[Part] = []
        for term in self.sum(source):
            state = State("pick", names, space, term.factors, node, index=index)
            entered = None if term.is_row else self.enter(state)
            found.append(Part(term.number, term.rows, entered))
        return found

    # ---- states

    def enter(self, state: State) -> State:
        """Note a state, after those that its correction needs: lower powers, counts."""
        if state in self.states:
            return next(s for s in self.states if s == state)
        for shift in dict.fromkeys(f for f in state.all_factors if isinstance(f, Shift)):
            lower = without(state, shift)
            if lower.kind == "sum" and not lower.factors:
                lower = State("count", lower.names, lower.space, (), lower.source)
            if not vanishes(lower):
                self.enter(lower)
        for anchor in anchors(state.all_factors):
            if anchor.kind == "mean":
                self.enter(self.count_for(anchor))
        self.states.append(state)
        return state

    def count_for(self, anchor: Anchor) -> State:
        """The running count that turns a running sum into a mean."""
        source = self.source_state(anchor)
        return State("count", source.names, source.space, (), source.source)

    def source_state(self, anchor: Anchor) -> State:
        """The state that an anchor reads."""
        state = self.forms[anchor.source][0].state
        assert state is not None
        return state


def without(state: State, factor: Factor) -> State:
    """The state with one factor less."""
    left, right = list(state.factors), list(state.right)
    (left if factor in left else right).remove(factor)
    if state.kind != "dot" or (left and right):
        return State(
            state.kind, state.names, state.space, tuple(left), state.source, tuple(right),
            state.right_space, state.index,
        )  # fmt: skip
    space = state.space if left else state.right_space
    names = tuple(n for n in space if n != K)
    return State("sum", names, space, tuple(left or right), state.source)


def vanishes(state: State) -> bool:
    """The sum of (a - mean of a) is 0."""
    if state.kind != "sum" or len(state.factors) != 1:
        return False
    (shift,) = state.factors
    if not isinstance(shift, Shift) or len(shift.r) != 1 or shift.r[0].number != 1:
        return False
    anchor = shift.r[0].anchor
    return anchor.kind == "mean" and shift.a == _summand(anchor)


def _summand(anchor: Anchor) -> Sum | None:
    (operand,) = anchor.source.args[:1]
    names = (*anchor.value.names, K)
    if anchor.source.attrs["axes"] != (operand.tensor.rank - 1,):
        return None
    return (Term(1.0, (), (Power(Value(operand, names)),)),)


def anchors(factors: Sequence[Factor]) -> list[Anchor]:
    """The anchors of factors, each once."""
    held = [f for f in factors if isinstance(f, Exp | Shift)]
    return list(dict.fromkeys(s.anchor for f in held for s in f.r))


def _tests_infinity(test: Node, chosen: Node) -> bool:
    """Whether a test holds for every finite number that `chosen` may be."""
    if test.op == "isfinite":
        return test.args[0] is chosen
    return test.op in ("ne", "gt", "lt") and _compares(test, chosen)


def _is_infinite(test: Node, chosen: Node) -> bool:
    """Whether a test fails for every finite number that `chosen` may be."""
    if test.op != "eq":
        return False
    size = test.args[0]
    if size.op == "abs" and size.args[0] is chosen:
        return splat(test.args[1]) == math.inf
    return _compares(test, chosen)


def _compares(test: Node, chosen: Node) -> bool:
    limits = {"ne": (-math.inf, math.inf), "eq": (-math.inf, math.inf)}
    wanted = limits.get(test.op, (-math.inf,) if test.op == "gt" else (math.inf,))
    return test.args[0] is chosen and splat(test.args[1]) in wanted
