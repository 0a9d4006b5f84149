"""Write summands as sums of products, with a - r kept as one factor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir import ops
from stack.ir.algebra import ELEMENTWISE
from stack.ir.builder import constant, converted, make, reshaped
from stack.ir.node import Node
from stack.ir.traits import choice, converts, equates, extremum, shows, splat
from stack.passes.streaming.region import Region
from stack.passes.streaming.stabilizer import find_stabilizer, inside_guard
from stack.passes.streaming.terms import (
    Exp,
    Factor,
    Form,
    MaskFactor,
    Names,
    Power,
    Refusal,
    ScaledStabilizer,
    Shift,
    Sum,
    Term,
    TermValue,
    TieFactor,
    common,
    negative,
    product,
)


class Sums:
    """The values of a region as sums of terms.

    Attributes:
        forms: each reduction in terms of states, as far as it is known.
        guarded: reductions whose infinities the function replaces somewhere.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.graph = region.graph
        self.forms: dict[Node, Form] = {}
        self.guarded: set[Node] = set()
        self._sums: dict[TermValue, Sum] = {}

    def sum(self, value: TermValue) -> Sum:
        """Returns a value as a sum of products (terms), cached."""
        if value not in self._sums:
            self._sums[value] = self._sum(value)
        return self._sums[value]

    def _sum(self, value: TermValue) -> Sum:
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
        if ops.is_whole_view(node):
            return self.sum(operands[0])
        if not node.dtype.is_float:
            if value.streams and converts(node):
                return self._cast(value, operands)
            if value.streams:
                raise Refusal(f"{self.graph.name(node)} of {node.dtype} depends on a reduction")
            return (Term(1.0, (Power(value),)),)
        rule = getattr(self, f"_{node.op}", None)
        if rule is not None:
            return rule(value, operands)
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        raise Refusal(
            f"{self.graph.name(node)} is {node.op!r} of a value that an earlier reduction changes"
        )

    def _add(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        return self.sum(operands[0]) + self.sum(operands[1])

    def _sub(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        return self.sum(operands[0]) + negative(self.sum(operands[1]))

    def _neg(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        return negative(self.sum(operands[0]))

    def _mul(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        for number, other in ((splat(operands[i].node), operands[1 - i]) for i in (0, 1)):
            if isinstance(number, int | float) and math.isfinite(number):
                return tuple(t.scaled(float(number)) for t in self.sum(other))
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        return product(self.grouped(operands[0]), self.grouped(operands[1]))

    def _div(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
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

    def row_behind(self, value: TermValue) -> TermValue | None:
        """Returns the row that a value repeats along k; None if it does not."""
        while value.streams and shows(value.node):
            if not self.region.passes(value):
                return None
            (value,) = self.region.operand_values(value)
        return None if value.streams else value

    def _cast(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        """Ignores casts between 16-bit and 32-bit floats: all are computed in f32."""
        dtypes = value.node.dtype, operands[0].node.dtype
        if all(d.is_float and d.bits < 64 for d in dtypes):
            return self.sum(operands[0])
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        tie = self._tie(operands[0])
        if tie is not None:
            return (Term(1.0, (), (tie,)),)
        raise Refusal(f"{self.graph.name(value.node)} is a cast from {dtypes[1]} to {dtypes[0]}")

    def _tie(self, test: TermValue) -> TieFactor | None:
        """Returns a comparison of each element with the max or min of all, [a = r], as a factor;
        None for other tests."""
        if not equates(test.node):
            return None
        sides = self.region.operand_values(test)
        for value, other in (sides, sides[::-1]):
            row = self.row_behind(other)
            if row is None or self.region.depends(value):
                continue
            found = find_stabilizer(self.region, self.forms, 1.0, row)
            if found is None or found[0].stabilizer.kind != "bound" or found[1]:
                continue
            stabilizer = found[0].stabilizer
            if self.region.operands[stabilizer.source] == (value,) and self._is_exact(value):
                return TieFactor(value, stabilizer)
        return None

    def _is_exact(self, value: TermValue) -> bool:
        """True if no dropped rounding to 16 bits could make elements equal."""
        if not self.region.passes(value):
            return True
        node = value.node
        if not ops.is_whole_view(node) and node.dtype.is_float and node.dtype.bits == 16:
            return False
        return all(map(self._is_exact, self.region.operand_values(value)))

    def _pow(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
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

    def _select(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        test, yes, no = operands
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        found: list[Term] = []
        for branch, keep in ((yes, True), (no, False)):
            found.extend(product(self.grouped(branch), (self._masked(value, test, keep),)))
        return tuple(found)

    def _masked(self, value: TermValue, test: TermValue, keep: bool) -> Term:
        row = self.row_behind(test)
        if row is not None:
            return Term(1.0, (MaskFactor(row, keep),))
        if self.region.depends(test):
            raise Refusal(
                f"{self.graph.name(value.node)} chooses by a value that an earlier reduction"
                " changes"
            )
        return Term(1.0, (), (MaskFactor(test, keep),))

    def _exp(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        """Returns exp of a sum as the product exp(a - r) * exp(rows). Here r is a running max or
        min of a, and rows are values without the streamed axis. Raises Refusal if the sum has a
        product with a state."""
        node = value.node
        if not value.streams:
            return (Term(1.0, (Power(value),)),)
        inner = operands[0]
        while ops.is_whole_view(inner.node) and self.region.passes(inner):
            (inner,) = self.region.operand_values(inner)
        if choice(inner.node):
            return self._exp_of_choice(value, inner)
        a, rows, rest = self._split(self.sum(inner))
        if rest:
            raise Refusal(f"{self.graph.name(node)} is {node.op!r} of a product with a state")
        bounds: list[ScaledStabilizer] = []
        factors: list[Power | MaskFactor] = []
        bare = True
        for number, row in rows:
            found = find_stabilizer(self.region, self.forms, -number, row)
            if found is None and number < 0:
                found = self._below(number, row)
                if found is not None:
                    factors.append(self._gap(node.op, found[0], row))
            elif found is None or found[0].stabilizer.kind != "bound":
                found = None
            if found is None:
                factors.append(self._row_exp(node.op, number, row))
                continue
            scaled, guarded = found
            source = scaled.stabilizer.source
            if (source.attrs["kind"] == "max") != (scaled.number > 0):
                raise Refusal(
                    f"{self.graph.name(node)} grows with {self.graph.name(source)}, which is no"
                    " bound of it"
                )
            bounds.append(scaled)
            if guarded:
                self.guarded.add(source)
                bare = False
        if not bounds:
            raise Refusal(
                f"{self.graph.name(node)} is {node.op!r} of a - r with no running max or min in r"
            )
        return (Term(1.0, tuple(factors), (Exp(node.op, a, tuple(bounds), bare),)),)

    _exp2 = _exp

    def _exp_of_choice(self, value: TermValue, choice: TermValue) -> Sum:
        test, yes, no = self.region.operand_values(choice)
        found: list[Term] = []
        for branch, keep in ((yes, True), (no, False)):
            if splat(branch.node) == -math.inf:
                continue
            made = TermValue(make(value.node.op, (branch.node,)), branch.names)
            if not branch.node.shape:
                raise Refusal(f"{self.graph.name(choice.node)} chooses a number that is no mask")
            terms = self._exp(made, (branch,)) if self.region.depends(branch) else None
            if terms is None:
                raise Refusal(f"{self.graph.name(choice.node)} chooses values of other scale")
            found.extend(product(terms, (self._masked(choice, test, keep),)))
        return tuple(found)

    def _below(self, number: float, row: TermValue) -> tuple[ScaledStabilizer, bool] | None:
        """Returns a multiple of a running max if `row` is the max of that and other values, so that
        it is never less. None for other rows."""
        while (position := inside_guard(row.node)) is not None:
            row = self.region.operand_values(row)[position]
        if extremum(row.node) <= 0:
            return None
        for part in self.region.operand_values(row):
            found = find_stabilizer(self.region, self.forms, -number, part) or self._below(
                number, part
            )
            if found is not None and found[0].stabilizer.kind == "bound":
                if found[0].stabilizer.source.attrs["kind"] == "max":
                    return found[0], True
        return None

    def _gap(self, op: str, bound: ScaledStabilizer, row: TermValue) -> Power:
        """Returns exp(m - row) as a factor, where m is the final value of `bound`.

        It is at most 1 if the row is no less than m, and 0 if m is -inf. Raises Refusal if m and
        the row have different axes.
        """
        held = bound.stabilizer.value.node
        own = self.region.long_names(bound.stabilizer.value.names)
        if own != self.region.long_names(row.names):
            raise Refusal(
                f"{self.graph.name(row.node)} has other axes than {self.graph.name(held)}"
            )
        held = converted(reshaped(held, row.node.shape), row.node.dtype)
        inner = make("sub", (held, row.node))
        if bound.number != 1:
            inner = make("mul", (inner, constant(bound.number, inner.dtype)))
        return Power(TermValue(make(op, (inner,)), row.names))

    def _row_exp(self, op: str, number: float, row: TermValue) -> Power:
        """Returns exp(number * row) as a factor, for a row without the streamed axis. If the row is
        log(x) and `number` is 1 or -1, that is x or 1 / x."""
        inner = row.node
        if inner.op == ELEMENTWISE[op].inverse and number in (1, -1):
            (below,) = self.region.operand_values(row)
            return Power(below, int(number))
        if number != 1:
            inner = make("mul", (inner, constant(number, inner.dtype)))
        return Power(TermValue(make(op, (inner,)), row.names))

    # ---- a - r

    def _split(self, terms: Sum) -> tuple[Sum, list[tuple[float, TermValue]], Sum]:
        """Splits the terms of a sum in three: those without states; rows (values without the
        streamed axis) that depend on states, each with its number; and all others."""
        fixed: list[Term] = []
        rows: list[tuple[float, TermValue]] = []
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
        return tuple(fixed), self._merged(rows), tuple(rest)

    def _merged(self, rows: Sequence[tuple[float, TermValue]]) -> list[tuple[float, TermValue]]:
        """Adds up the numbers of each row; rows that cancel are dropped."""
        total: dict[tuple[Node, Names], tuple[float, TermValue]] = {}
        for number, row in rows:
            key = row.node, self.region.long_names(row.names)
            before, first = total.get(key, (0.0, row))
            total[key] = before + number, first
        return [(number, row) for number, row in total.values() if number]

    def is_fixed(self, factor: Factor) -> bool:
        """True if a factor is a value, or its reciprocal, that depends on no state, so that the
        loop never has to correct it."""
        return isinstance(factor, Power) and not self.region.depends(factor.value)

    def grouped(self, value: TermValue) -> Sum:
        """Returns a value as a sum of terms in which each a - r, a value minus a running reference,
        is one factor. Raises Refusal if there is no such reference r for an a."""
        return self._grouped(value, self.sum(value))

    def _grouped(self, value: TermValue, terms: Sum) -> Sum:
        if not value.streams:
            return terms
        shared = common(terms)
        if shared != Term():
            # p a - p r is p (a - r): otherwise it would be the difference of two large sums
            left = tuple(t.without(shared) for t in terms)
            return product((shared,), self._together(self._grouped(value, left)))
        fixed, rows, rest = self._split(terms)
        if not rows or all(t.is_row for t in fixed):
            return terms
        stabilized: list[ScaledStabilizer] = []
        others: list[Term] = []
        for number, row in rows:
            found = find_stabilizer(self.region, self.forms, -number, row)
            if found is None:
                others.append(Term(number, (Power(row),)))
            else:
                stabilized.append(found[0])
        if not stabilized:
            raise Refusal(
                f"{self.graph.name(value.node)} is a - r, where r ="
                f" {self.graph.name(rows[0][1].node)} is no running max, min or mean"
            )
        return (Term(1.0, (), (Shift(fixed, tuple(stabilized)),)), *others, *rest)

    def _together(self, terms: Sum) -> Sum:
        """Returns a sum of several terms without states as a single factor. Unchanged if a term has
        a state, or if none has the streamed axis."""
        fixed, _, _ = self._split(terms)
        if fixed != terms or len(terms) == 1 or all(t.is_row for t in terms):
            return terms
        return (Term(1.0, (), (Shift(terms, ()),)),)
