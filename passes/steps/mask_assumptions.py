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
    is_exponential,
    is_loop,
    is_number,
    is_reduction,
    multiplies,
    number,
    shows,
    signs,
)
from stack.passes.steps.online import states_of, total_of
from stack.passes.steps.online_masks import hidden_value

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
        found = _Hidden(block, select, _number(select.args[side])).maxima if side else {}
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
        most: upper bounds of values, if each maximum is above half of what the element adds to it.
        zero: values that are 0 then.
        maxima: the maxima among the states, each with the upper bound of what the element adds to
            it. Empty if the element would contribute to another state.
    """

    def __init__(self, block: Block, select: Node, fill: float) -> None:
        self.states = {s.new: s for s in states_of(block) or ()}
        self.most: dict[Node, float] = {select: fill}
        self.zero: dict[Node, float] = {}
        self.maxima: dict[Node, float] = {}
        self._follow(block)
        for new, state in self.states.items():
            is_nothing = KIND_OF[new.op] == "sum" and state.part in self.zero
            if new not in self.maxima and not is_nothing:
                self.maxima = {}
                return

    def _follow(self, block: Block) -> None:
        for node in block.nodes:
            for inner in node.blocks:
                self._follow(inner)
            state = self.states.get(node)
            if state is not None and KIND_OF[node.op] == "max":
                if state.part in self.most:
                    self.maxima[node] = self.most[state.part]
                continue
            bound = None if node in self.most else self._bound(node)
            if bound is not None:
                self.most[node] = bound
            elif self._is_zero(node):
                self.zero[node] = 0.0

    def _is_zero(self, node: Node) -> bool:
        if is_exponential(node):
            return self.most.get(node.args[0], 0.0) <= UNDERFLOW
        is_reached = node.blocks or not self.zero.keys().isdisjoint(node.args)
        return bool(is_reached) and hidden_value(node, self.zero) == 0.0

    def _bound(self, node: Node) -> float | None:
        """Returns the upper bound of a value that those of its operands set; None for no bound."""
        total = total_of(node) if is_loop(node) else None
        if total is not None:
            return self.most.get(total.part) if KIND_OF[total.new.op] == "max" else None
        if shows(node) or (is_reduction(node) and node.attrs["kind"] == "max"):
            return self.most.get(node.args[0])
        if choice(node) is not None:
            level = max(self.most.get(a, _number(a)) for a in node.args[1:])
            return level if level < UNDERFLOW else None
        if len(node.args) != 2:
            return None
        (a, b), terms = node.args, signs(node)
        if a in self.most and (multiplies(node) or divides(node)) and _is_positive(b):
            return self.most[a] * (_number(b) if multiplies(node) else 1 / _number(b))
        if a in self.most and terms == (1, -1) and _bound_of(b) in self.maxima:
            return self.most[a] - self.maxima[_bound_of(b)] / 2
        levels = (
            self.most[x] for x, sign in zip((a, b), terms or ()) if x in self.most and sign > 0
        )
        level = next(levels, 0.0)
        return level if level <= ABSORBS else None


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
