"""Step 1 of the streaming rewrite: write every reduction over k as a sum of rows times states.

Sums and dots are linear: they are split into terms, and factors without k leave the reduction. So
sum(exp(s - m) / l * v) is sum(exp(s - m) * v) / l. Casts to 16-bit floats in between are dropped:
the running values are wider.
"""

from __future__ import annotations

import math
from itertools import product as choices

from stack.ir.axes import parse_rule
from stack.ir.builder import make
from stack.ir.node import Node
from stack.ir.traits import equates, is_contraction, is_reduction, reads_by_data, signs, splat
from stack.passes.streaming.region import Region
from stack.passes.streaming.stabilizer import may_be_infinite, stabilizers
from stack.passes.streaming.sums import Sums
from stack.passes.streaming.terms import (
    Exp,
    Factor,
    K,
    Names,
    Power,
    Refusal,
    Shift,
    Stabilizer,
    State,
    Sum,
    SummandPart,
    Term,
    TermValue,
)


class NormalForm(Sums):
    """The members of a region in normal form.

    Attributes:
        states: the states, each after those that it depends on.
    """

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        region.settle()
        self.states: list[State] = []
        for node in sorted(region.members, key=lambda n: self.graph.place[n]):
            try:
                self.forms[node] = tuple(self._reduction(node))
            except Refusal as refusal:
                refusal.reduction = node
                raise

    def _reduction(self, node: Node) -> list[SummandPart]:
        region = self.region
        operands = region.operands[node]
        names = region.atoms(region.members[node])
        if reads_by_data(node):
            return self._pick(node, operands)
        if is_contraction(node):
            return self._dot(node, operands, names)
        kind = node.attrs["kind"]
        operand = operands[0]
        known = self._all_infinite(node, operand)
        if known is not None:
            return [SummandPart(1.0, (Power(TermValue(known, region.members[node])),), None)]
        if not region.depends(operand):
            return [SummandPart(1.0, (), self.enter(self._state(node, kind, operand)))]
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

    def _all_infinite(self, node: Node, operand: TermValue) -> Node | None:
        """Rewrites "all are -inf" as "their max is -inf", if the max is a state anyway."""
        test = operand.node
        if node.attrs["kind"] != "and" or not equates(test) or splat(test.args[1]) != -math.inf:
            return None
        for other, values in self.region.operands.items():
            if is_reduction(other) and other.attrs["kind"] == "max":
                if values[0] == TermValue(test.args[0], operand.names):
                    return make("eq", (other, test.args[1]))
        return None

    def _state(self, node: Node, kind: str, operand: TermValue) -> State:
        space = self.region.atoms(operand.names)
        names = tuple(n for n in space if n != K)
        return State(kind, names, space, (Power(operand),), node)

    def _linear(self, term: Term, state: State) -> SummandPart:
        if not term.is_row:
            return SummandPart(term.number, term.rows, self.enter(state), bare_stabilizers(term))
        if not isinstance(self.region.extent, int):
            raise Refusal("a sum of ones along an axis of symbolic size")
        return SummandPart(term.number * self.region.extent, term.rows, None)

    def _dot(self, node: Node, operands: tuple[TermValue, ...], names: Names) -> list[SummandPart]:
        left, right = operands
        spaces = self.region.atoms(left.names), self.region.atoms(right.names)
        found: list[SummandPart] = []
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

    def _bound(self, node: Node, kind: str, operand: TermValue) -> list[SummandPart]:
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
        first = SummandPart(1.0, (), self.enter(self._state(node, kind, factor.value)))
        return [first, *(SummandPart(number, (Power(row),), None) for number, row in rows)]

    def _pick(self, node: Node, operands: tuple[TermValue, ...]) -> list[SummandPart]:
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
        found: list[SummandPart] = []
        for term in self.sum(source):
            state = State("pick", names, space, term.factors, node, index=index)
            entered = None if term.is_row else self.enter(state)
            found.append(SummandPart(term.number, term.rows, entered, bare_stabilizers(term)))
        return found

    # ---- states

    def enter(self, state: State) -> State:
        """Adds a state, after those that its correction needs: lower powers, counts."""
        if state in self.states:
            return next(s for s in self.states if s == state)
        for shift in dict.fromkeys(f for f in state.all_factors if isinstance(f, Shift) and f.r):
            lower = without(state, shift)
            if lower.kind == "sum" and not lower.factors:
                lower = State("count", lower.names, lower.space, (), lower.source)
            if not vanishes(lower):
                self.enter(lower)
        for stabilizer in stabilizers(state.all_factors):
            if stabilizer.kind == "mean":
                self.enter(self.count_for(stabilizer))
        self.states.append(state)
        return state

    def count_for(self, stabilizer: Stabilizer) -> State:
        """Returns the running count by which a running sum is divided to give a mean."""
        source = self.source_state(stabilizer)
        return State("count", source.names, source.space, (), source.source)

    def is_guarded(self, stabilizer: Stabilizer) -> bool:
        """True if states that use a running max or min have to be guarded against its being
        infinite: the function guards it, or an element may be -inf."""
        source = stabilizer.source
        if source in self.guarded or source.attrs["kind"] == "min":
            return True
        return may_be_infinite(source.args[0], set())

    def source_state(self, stabilizer: Stabilizer) -> State:
        """Returns the state (running value) of the reduction that a stabilizer is computed from."""
        state = self.forms[stabilizer.source][0].state
        assert state is not None
        return state


def without(state: State, factor: Factor) -> State:
    """Returns a state (running value) whose summand lacks one occurrence of `factor`. A dot that
    loses its last factor on a side becomes a sum."""
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


def bare_stabilizers(term: Term) -> tuple[Stabilizer, ...]:
    """Returns the bounds in a term that make it nan if they are infinite: those of exponentials
    without a guard, and those that are subtracted from their own elements."""
    exps = [f for f in term.factors if isinstance(f, Exp) and f.bare]
    shifts = [f for f in term.factors if isinstance(f, Shift)]
    own = [r.stabilizer for f in shifts for r in f.r if r.number == 1 and _bounds(r.stabilizer, f)]
    return tuple(dict.fromkeys((*stabilizers(exps), *own)))


def _bounds(stabilizer: Stabilizer, shift: Shift) -> bool:
    """True if a stabilizer is the running max or min of values that it is subtracted from, of these
    alone or of an addend."""
    own = stabilizer.source.args[0]
    powers = [t.factors[0] for t in shift.a if t.number > 0 and not t.rows and len(t.factors) == 1]
    values = [f.value.node for f in powers if isinstance(f, Power) and f.power == 1]
    return stabilizer.kind == "bound" and any(own in _addends(v) for v in values)


def _addends(node: Node) -> set[Node]:
    """Returns the values that are added in a sum, not subtracted; the sum itself is one of them."""
    found = {node}
    for arg, sign in zip(node.args, signs(node) or ()):
        found |= _addends(arg) if sign > 0 else set()
    return found


def vanishes(state: State) -> bool:
    """True for the sum of (a - mean of a), which is 0."""
    if state.kind != "sum" or len(state.factors) != 1:
        return False
    (shift,) = state.factors
    if not isinstance(shift, Shift) or len(shift.r) != 1 or shift.r[0].number != 1:
        return False
    stabilizer = shift.r[0].stabilizer
    return stabilizer.kind == "mean" and shift.a == _summand(stabilizer)


def _summand(stabilizer: Stabilizer) -> Sum | None:
    (operand,) = stabilizer.source.args[:1]
    if len(stabilizer.source.attrs["axes"]) != 1:
        return None
    (axis,) = stabilizer.source.attrs["axes"]
    kept = stabilizer.value.names
    return (Term(1.0, (), (Power(TermValue(operand, (*kept[:axis], K, *kept[axis:]))),)),)
