"""Write summands as sums of products, with a - r kept as one factor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir import ops
from stack.ir.algebra import ELEMENTWISE
from stack.ir.builder import constant, converted, make, reshaped
from stack.ir.node import Node
from stack.ir.traits import (
    choice,
    converts,
    divides,
    equates,
    extremum,
    multiplies,
    negative_of,
    shows,
    signs,
    splat,
)
from stack.passes.streaming.region import Region
from stack.passes.streaming.stabilizer import find_stabilizer, inside_guard
from stack.passes.streaming.terms import (
    Exp,
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
        """Linear ops keep sums; any other row (value without the streamed axis) is a factor."""
        node, row = value.node, (Term(1.0, (Power(value),)),)
        number = splat(node)
        if isinstance(number, int | float) and math.isfinite(number):
            return (Term(float(number)),) if number else ()
        if not self.region.depends(value):
            return (Term(1.0, (), (Power(value),)),) if value.streams else row
        if node in self.region.members:
            return row
        operands = self.region.operand_values(value)
        linear = self._linear_parts(node, operands)
        if linear:
            return tuple(t.scaled(number) for number, part in linear for t in self.sum(part))
        if not value.streams:
            return row
        name = self.graph.name(node)
        if not (node.dtype.is_float or converts(node)):
            raise Refusal(f"{name} of {node.dtype} depends on a reduction")
        rule = getattr(self, f"_{node.op}", None)
        if rule is None:
            raise Refusal(f"{name} is {node.op!r} of a value that an earlier reduction changes")
        return rule(value, operands)

    def _linear_parts(
        self, node: Node, operands: Sequence[TermValue]
    ) -> list[tuple[float, TermValue]]:
        """Returns the operands of a linear op, each with the number that it is multiplied by; empty
        for other ops. Casts between 16-bit and 32-bit floats count: all are computed in f32."""
        if ops.is_whole_view(node):
            return [(1.0, operands[0])]
        if not node.dtype.is_float:
            return []
        if own := signs(node):
            return [(float(sign), part) for sign, part in zip(own, operands, strict=True)]
        if negative_of(node):
            return [(-1.0, operands[0])]
        if converts(node) and all(
            v.dtype.is_float and v.dtype.bits < 64 for v in (node, *node.args)
        ):
            return [(1.0, operands[0])]
        if multiplies(node) or divides(node):
            for number, part in ((splat(b.node), a) for a, b in (operands, operands[::-1])):
                if isinstance(number, int | float) and math.isfinite(number):
                    if multiplies(node):
                        return [(float(number), part)]
                    if part is operands[0] and number:
                        return [(1 / number, part)]
        return []

    def _mul(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        return product(self.grouped(operands[0]), self.grouped(operands[1]))

    def _div(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        above, below = operands
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
        tie = self._tie(operands[0])
        if tie is not None:
            return (Term(1.0, (), (tie,)),)
        dtypes = f"{operands[0].node.dtype} to {value.node.dtype}"
        raise Refusal(f"{self.graph.name(value.node)} is a cast from {dtypes}")

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
        if degree not in (2, 3, 4):
            raise Refusal(f"{self.graph.name(value.node)} is a power other than 2, 3 and 4")
        base = self.grouped(operands[0])
        result = base
        for _ in range(int(degree) - 1):
            result = product(result, base)
        return result

    def _select(self, value: TermValue, operands: Sequence[TermValue]) -> Sum:
        test, yes, no = operands
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
        rows: dict[tuple[Node, Names], tuple[float, TermValue]] = {}
        rest: list[Term] = []
        for term in terms:
            parts = (*term.rows, *term.factors)
            if all(isinstance(f, Power) and not self.region.depends(f.value) for f in parts):
                fixed.append(term)
                continue
            alone = term.rows[0] if term.is_row and len(term.rows) == 1 else None
            if isinstance(alone, Power) and alone.power == 1:
                # the numbers of one row are added up; rows that cancel are dropped
                key = alone.value.node, self.region.long_names(alone.value.names)
                before, first = rows.get(key, (0.0, alone.value))
                rows[key] = before + term.number, first
            else:
                rest.append(term)
        return tuple(fixed), [(n, row) for n, row in rows.values() if n], tuple(rest)

    def grouped(self, value: TermValue, terms: Sum | None = None) -> Sum:
        """Returns a value as a sum of terms in which each a - r, a value minus a running reference,
        is one factor. `terms`: the value's sum, or a part of it.

        Raises Refusal if there is no such reference r for an a.
        """
        terms = self.sum(value) if terms is None else terms
        if not value.streams:
            return terms
        shared = common(terms)
        if shared != Term():
            # p a - p r is p (a - r): otherwise it would be the difference of two large sums
            left = tuple(t.without(shared) for t in terms)
            return product((shared,), self._together(self.grouped(value, left)))
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
