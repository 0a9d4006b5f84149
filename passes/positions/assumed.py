"""Treat masks of a large negative number, such as the least of a type, as masks of -inf.

If the max m of a row is far above such a number, masked elements add nothing to sums of exp(x - m):
exp rounds to 0. With -inf the sums are the same, and fully masked tiles can be skipped. If m is not
above `floor` in some row, for example a fully masked one, the assumption is false for that row.
Then the result is computed again without the assumption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stack.ir.builder import constant, make
from stack.ir.node import Block, Node
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import choice, divides, is_exponential, multiplies, shows, signs, unconverted
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.splat import splat

ABSORBS = -(2.0**100)  # a sum with it counts as masked, whatever its other terms are
UNDERFLOW = -1100.0  # exp and exp2 of this and less are 0, in all types


@dataclass(frozen=True)
class Assumed:
    """The states of a stream with -inf in place of large negative numbers.

    Attributes:
        states: the block, with the parameters of the original one.
        floors: positions of states that are maxima, each with the number that it has to exceed.
        origin: the original select of each select of the block.
    """

    states: Block
    floors: Mapping[int, float]
    origin: Mapping[Node, Node]


def assumed(states: Block) -> Assumed | None:
    """Returns the assumed block; None if no large negative mask hides from all states."""
    floors: dict[int, float] = {}
    changed: dict[Node, Replacement] = {}
    for select in states.nodes:
        side = _filled(select)
        found = _Hidden(states, select, _number(select.args[side])).floors() if side else None
        if side and found:
            for state, level in found.items():
                floors[state] = max(level / 2, floors.get(state, -math.inf))
            lowest = constant(-math.inf, select.dtype)
            args = [lowest if i == side else a for i, a in enumerate(select.args)]
            changed[select] = Replacement(make("select", args, hint=select.type))
    if not changed:
        return None
    made = replace(states, changed)
    return Assumed(made, floors, _origin(states, made))


def as_hidden(states: Block) -> Block:
    """Returns the states of a stream with masks of large negative numbers as masks of -inf."""
    found = assumed(states)
    return found.states if found is not None else states


def _origin(old: Block, new: Block) -> dict[Node, Node]:
    """Maps the selects of a block to those that they replace; both are in the same order."""
    kinds = [[n for n in block.nodes if choice(n)] for block in (new, old)]
    return dict(zip(*kinds, strict=True))


def _filled(select: Node) -> int:
    """Returns the operand of a select that is a large negative number; 0 if there is none."""
    if choice(select) is None or not select.tensor.rank or not select.dtype.is_float:
        return 0
    sides = [i for i in (1, 2) if -math.inf < _number(select.args[i]) < UNDERFLOW]
    return sides[0] if len(sides) == 1 else 0


def _number(node: Node) -> float:
    value = splat(unconverted(node))
    return float(value) if isinstance(value, int | float) else 0.0


class _Hidden:
    """Propagates a masked element through the states of a stream.

    Attributes:
        level: values that are at most this number for a masked element.
        below: values that are at most this number, if every max is above half its level.
        zero: values that are 0 under the same condition.
        maxima: states that are a max, with the level of their operand.
    """

    def __init__(self, states: Block, select: Node, fill: float) -> None:
        self.states = states
        self.level: dict[Node, float] = {select: fill}
        self.below: dict[Node, float] = {}
        self.zero: set[Node] = set()
        self.maxima: dict[Node, float] = {}
        for node in states.nodes:
            if node is not select:
                self._visit(node)

    def _visit(self, node: Node) -> None:
        args = node.args
        if shows(node):
            for found in (self.level, self.below):
                if args[0] in found:
                    found[node] = found[args[0]]
            if args[0] in self.zero:
                self.zero.add(node)
        elif node in self.states.results and node.attrs.get("kind") == "max":
            if args[0] in self.level:
                self.maxima[node] = self.level[args[0]]
        elif choice(node):
            if all(a in self.zero or splat(a) == 0 for a in args[1:]):
                self.zero.add(node)
            levels = [self.level.get(a, _number(a)) for a in args[1:]]
            if max(levels) < UNDERFLOW:
                self.level[node] = max(levels)
        elif is_exponential(node):
            if self.below.get(args[0], 0.0) <= UNDERFLOW:
                self.zero.add(node)
        elif len(args) == 2:
            self._combine(node, *args)

    def _combine(self, node: Node, a: Node, b: Node) -> None:
        terms = signs(node)
        is_scaled = multiplies(node) or divides(node)
        if is_scaled and _positive(b):
            factor = _number(b) if multiplies(node) else 1 / _number(b)
            for found in (self.level, self.below):
                if a in found:
                    found[node] = found[a] * factor
        elif terms == (1, -1) and a in self.level and _bound_of(b) in self.maxima:
            self.below[node] = self.level[a] - self.maxima[_bound_of(b)] / 2
        if terms and node not in self.below:
            masked = [x for x, sign in zip((a, b), terms) if x in self.level and sign > 0]
            if masked and self.level[masked[0]] <= ABSORBS:
                self.level[node] = self.level[masked[0]]
        if is_scaled and (a in self.zero or (multiplies(node) and b in self.zero)):
            self.zero.add(node)
        if terms and a in self.zero and b in self.zero:
            self.zero.add(node)

    def floors(self) -> dict[int, float] | None:
        """Returns the level of each max state; None if some state takes masked elements."""
        found: dict[int, float] = {}
        for i, state in enumerate(self.states.results):
            operands = [operand for operand, _ in streamed_axes(state)]
            if state in self.maxima:
                found[i] = self.maxima[state]
            elif state.attrs.get("kind", "sum") != "sum" or self.zero.isdisjoint(operands):
                return None
        return found


def _positive(node: Node) -> bool:
    return not node.tensor.rank and 0 < _number(node) < math.inf


def _bound_of(node: Node) -> Node:
    """Returns the max behind a row, through views and guards against infinities."""
    while True:
        chosen = choice(node)
        if chosen is not None and splat(chosen.yes) == 0:
            node = chosen.no
        elif shows(node):
            node = node.args[0]
        else:
            return node


__all__ = ["Assumed", "as_hidden", "assumed"]
