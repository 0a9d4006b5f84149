"""The derivation of a stream as text: its normal form, and the summand F and action A of states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stack.ir.node import Node
from stack.ir.traits import is_number, number, shows
from stack.passes.streaming.normal_form import NormalForm
from stack.passes.streaming.terms import (
    Exp,
    Factor,
    MaskFactor,
    Power,
    ScaledStabilizer,
    State,
    Sum,
    TieFactor,
    follows,
)

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def explained(normal: NormalForm, sink: Node, price: str) -> str:
    """Describes the derivation of a stream that ends in the reduction `sink`, step by step."""
    region, text = normal.region, _Text(normal)
    lines = [f"{normal.graph.name(sink)} is streamed over an axis of {region.extent}"]
    lines.append("normal form")
    forms: dict[Node, str] = {}
    members = sorted(normal.forms, key=normal.graph.place.__getitem__)
    for node in sorted(members, key=lambda n: any(p.rows for p in normal.forms[n])):
        forms[node] = _signed(
            (
                (p.number, [*([text.place[p.state]] if p.state else ()), *map(text.factor, p.rows)])
                for p in normal.forms[node]
            ),
            " * ",
        )
        text.known[node] = f"({forms[node]})" if " " in forms[node] else forms[node]
    lines += [f"  {text.place[s]} = {text.state(s)}" for s in normal.states]
    lines += [f"  {text.names.get(n, n.op)} = {forms[n]}" for n in members]
    lines.append("summand F and action A")
    for state in normal.states:
        factors = [f for f in state.all_factors if follows(f)]
        actions = [text.action(f, factors.count(f)) for f in dict.fromkeys(factors)]
        made = f"F = {text.product(state.all_factors)}, A = {' times '.join(actions)}"
        lines.append(f"  {text.place[state]}: {made if actions else 'no state in it, A = 1'}")
    return "\n".join([*lines, f"price: {price}"] if price else lines)


class _Text:
    """Texts of terms, with the names that values have in the function."""

    def __init__(self, normal: NormalForm) -> None:
        block = normal.graph.block
        self.names = {**block.names, **{p: str(p.attrs["name"]) for p in block.params}}
        self.after = normal.graph.after(normal.region.members)  # values that depend on states
        self.place = {s: f"s{i}" for i, s in enumerate(normal.states)}
        self.known: dict[Node, str] = {}

    def node(self, node: Node) -> str:
        """Returns a value's name, or a formula of its operands if it depends on a state (running
        value) or has no name."""
        if node in self.known:
            return self.known[node]
        if is_number(node):
            return f"{number(node):g}"
        if node in self.names and node not in self.after:
            return self.names[node]
        parts = [self.node(a) for a in node.args]
        if node.op in SIGNS:
            self.known[node] = f"({parts[0]} {SIGNS[node.op]} {parts[1]})"
        else:
            self.known[node] = parts[0] if shows(node) else f"{node.op}({', '.join(parts)})"
        return self.known[node]

    def factor(self, factor: Factor) -> str:
        """Returns the text of one factor."""
        if isinstance(factor, Power):
            text = self.node(factor.value.node)
            return text if factor.power == 1 else f"1/{text}"
        if isinstance(factor, MaskFactor):
            return f"[{'' if factor.keep else 'not '}{self.node(factor.value.node)}]"
        if isinstance(factor, TieFactor):
            return f"[{self.node(factor.value.node)} = {self.node(factor.bound.value.node)}]"
        inside = self.difference(factor.a, factor.r)
        return f"{factor.op}({inside})" if isinstance(factor, Exp) else f"({inside})"

    def difference(self, a: Sum, r: Sequence[ScaledStabilizer]) -> str:
        """Returns the text of a - r."""
        pieces = [(t.number, [self.factor(f) for f in (*t.rows, *t.factors)]) for t in a]
        for scaled in r:
            count = "/count" if scaled.stabilizer.kind == "mean" else ""
            pieces.append((-scaled.number, [self.node(scaled.stabilizer.value.node) + count]))
        return _signed(pieces)

    def product(self, factors: Sequence[Factor]) -> str:
        """Returns the text of a product of factors."""
        return _signed([(1.0, list(map(self.factor, factors)))])

    def state(self, state: State) -> str:
        """Returns the text of a state."""
        if state.kind == "count":
            return "count_k"
        if state.kind == "pick" and state.index is not None:
            return f"sum_k [k = {self.node(state.index.node)}] {self.product(state.all_factors)}"
        kind = "sum" if state.kind == "dot" else state.kind
        return f"{kind}_k {self.product(state.all_factors)}"

    def action(self, factor: Factor, degree: int) -> str:
        """Returns the text of the action on a factor that occurs `degree` times in a summand."""
        if isinstance(factor, TieFactor):
            return f"[r = r'] with r = {self.node(factor.bound.value.node)}"
        assert not isinstance(factor, Power | MaskFactor), "these have no state"
        negated = [ScaledStabilizer(-s.number, s.stabilizer) for s in factor.r]
        reference = f"(r - r') with r = {self.difference((), negated)}"
        if isinstance(factor, Exp):
            return f"{factor.op}{reference}"
        return f"binomial of degree {degree} in {reference}"


def _signed(pieces: Iterable[tuple[float, list[str]]], times: str = " ") -> str:
    """Returns the text of a sum of numbers times factors; the number 1 is left out."""
    text = ""
    for size, factors in pieces:
        shown = factors if abs(size) == 1 and factors else [f"{abs(size):g}", *factors]
        part = times.join(shown).replace("* 1/", "/ ")
        is_negative = math.copysign(1.0, size) < 0
        text += f" {'-' if is_negative else '+'} {part}" if text else f"{'-' * is_negative}{part}"
    return text or "0"
