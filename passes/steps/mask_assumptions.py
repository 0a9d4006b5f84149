"""Masks of a large negative number that could be masks of -inf: what follows from one.

    %x = select(%test, -1e9, %score)         at most -1e9 where it hides
    %m = max(%old, reduce(%x))               assumed to be above -5e8
    exp(sub(%x, %m))                         exp of at most -5e8: 0

The values of a loop body are visited once, with the bounds that a hidden element sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make
from stack.ir.equivalence import once_in
from stack.ir.node import Block, Node
from stack.ir.traits import (
    choice,
    divides,
    is_contraction,
    is_exponential,
    is_loop,
    is_number,
    is_reduction,
    multiplies,
    number,
    shows,
    signs,
)
from stack.passes.steps.online import State, states_of, total_of

ABSORBS = -(2.0**100)  # a sum with it is hidden too, whatever else is in it
UNDERFLOW = -1100.0  # exp and exp2 of what is not above are 0, in all types


@dataclass(frozen=True)
class MaskAssumptions:
    """The assumptions about the masks in an online loop's body under which large negative numbers
    in them act like -inf.

    Attributes:
        masks: selections of a large negative number, with the operand that is the number.
        floors: states that are maxima, each with the number that it has to be above.
    """

    masks: Mapping[Node, int]
    floors: Mapping[Node, float]

    def replaced(self) -> dict[Node, Node]:
        """Returns the replacement of each mask: the same selection with -inf in place of the large
        negative number.
        """
        found: dict[Node, Node] = {}
        for mask, side in self.masks.items():
            lowest = constant(-math.inf, mask.dtype)
            args = [lowest if i == side else a for i, a in enumerate(mask.args)]
            found[mask] = make("select", args, hint=mask.type)
        return found


@once_in
def assumed(block: Block) -> MaskAssumptions | None:
    """Returns the assumptions under which large negative masks in the body of an online loop act
    like -inf; None if no such mask hides elements from all states.
    """
    states = states_of(block)
    masks: dict[Node, int] = {}
    floors: dict[Node, float] = {}
    for select in block.all_nodes if states else ():
        side = _filled(select)
        if not side:
            continue
        found = _Hidden(block, states or [], select, _number(select.args[side])).floors()
        if found:
            masks[select] = side
            for state, level in found.items():
                floors[state] = max(level / 2, floors.get(state, -math.inf))
    return MaskAssumptions(masks, floors) if masks else None


def _filled(select: Node) -> int:
    """Returns which operand (1 or 2) of a select node is a large negative number; 0 if neither or
    both are.
    """
    if choice(select) is None or not select.dtype.is_float:
        return 0
    sides = [i for i in (1, 2) if -math.inf < _number(select.args[i]) < UNDERFLOW]
    return sides[0] if len(sides) == 1 else 0


def _number(node: Node) -> float:
    """Returns the constant that all elements of a value equal; 0 if it is not such a constant."""
    while shows(node):
        (node,) = node.args
    return float(number(node)) if is_number(node) else 0.0


class _Hidden:
    """Propagates, through the body of an online loop, what is known of each value at an element
    that a large negative mask hides.

    Attributes:
        level: values that are at most such a number.
        below: values that are at most this, if each maximum is above half of its level.
        zero: values that are 0 then.
        maxima: maxima among the states, with the level of what they add.
    """

    def __init__(self, block: Block, states: list[State], select: Node, fill: float) -> None:
        self.states = states
        self.new = {s.new: s for s in states}
        self.level: dict[Node, float] = {select: fill}
        self.below: dict[Node, float] = {}
        self.zero: set[Node] = set()
        self.maxima: dict[Node, float] = {}
        self._follow(block, select)

    def _follow(self, block: Block, select: Node) -> None:
        for node in block.nodes:
            if is_loop(node):
                self._follow(node.blocks[0], select)
            if node is not select:
                self._visit(node)

    def _visit(self, node: Node) -> None:
        args = node.args
        if node in self.new and KIND_OF[node.op] == "max":
            if self.new[node].part in self.level:
                self.maxima[node] = self.level[self.new[node].part]
        elif is_loop(node):
            total = total_of(node)
            if total is not None:
                self._kept(node, total.part, KIND_OF[total.new.op])
        elif shows(node) or is_reduction(node):
            self._kept(node, args[0], node.attrs["kind"] if is_reduction(node) else "")
        elif is_contraction(node):
            if not self.zero.isdisjoint(args):
                self.zero.add(node)
        elif choice(node) is not None:
            if all(a in self.zero or (is_number(a) and number(a) == 0) for a in args[1:]):
                self.zero.add(node)
            levels = [self.level.get(a, _number(a)) for a in args[1:]]
            if max(levels) < UNDERFLOW:
                self.level[node] = max(levels)
        elif is_exponential(node):
            if self.below.get(args[0], 0.0) <= UNDERFLOW:
                self.zero.add(node)
        elif len(args) == 2:
            self._combine(node, *args)

    def _kept(self, node: Node, source: Node, kind: str) -> None:
        """Copies what is known of `source` at a hidden element to `node`: a view or conversion of
        it, or its reduction `kind`. Upper bounds remain valid for a maximum, zeros for a sum."""
        for found in (self.level, self.below):
            if source in found and kind in ("", "max"):
                found[node] = found[source]
        if source in self.zero and kind in ("", "sum"):
            self.zero.add(node)

    def _combine(self, node: Node, a: Node, b: Node) -> None:
        terms = signs(node)
        is_scaled = multiplies(node) or divides(node)
        if is_scaled and _is_positive(b):
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

    def floors(self) -> dict[Node, float] | None:
        """Returns for each maximum among the states the upper bound of what a hidden element adds
        to it. None if a hidden element would contribute to another state."""
        found: dict[Node, float] = {}
        for state in self.states:
            if state.new in self.maxima:
                found[state.new] = self.maxima[state.new]
            elif KIND_OF[state.new.op] != "sum" or state.part not in self.zero:
                return None
        return found


def _is_positive(node: Node) -> bool:
    return not node.tensor.rank and 0 < _number(node) < math.inf


def _bound_of(node: Node) -> Node:
    """Returns the node behind views, and behind selects that put 0 in place of an infinity: the
    maximum of each row that they are computed from.
    """
    while True:
        chosen = choice(node)
        if chosen is not None and is_number(chosen.yes) and number(chosen.yes) == 0:
            node = chosen.no
        elif shows(node):
            (node,) = node.args
        else:
            return node
