"""Masks of a large negative number that could be masks of -inf: what follows from one.

    %x = select(%test, -1e9, %score)         at most -1e9 where it hides
    %m = max(%old, reduce(%x))               assumed to be above -5e8
    exp(sub(%x, %m))                         exp of at most -5e8: 0

The values of a loop body are visited once, with the bounds that a hidden element sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from stack.passes.positions.visibility import follow
from stack.passes.steps.online import State, states_of, total_of
from stack.passes.steps.online_masks import HidingMask, hidden_value

ABSORBS = -(2.0**100)  # a sum with it is hidden too, whatever else is in it
UNDERFLOW = -1100.0  # exp and exp2 of what is not above are 0, in all types


@dataclass(frozen=True)
class MaskAssumptions:
    """The assumptions about the masks in an online loop's body under which large negative numbers
    in them act like -inf.

    Attributes:
        masks: selections of a large negative number, which hidden elements get.
        floors: states that are maxima, each with the number that it has to be above.
    """

    masks: Sequence[HidingMask]
    floors: Mapping[Node, float]

    def replaced(self) -> dict[Node, Node]:
        """Returns the masks with -inf in place of the large negative number."""
        found: dict[Node, Node] = {}
        for select, shown in self.masks:
            lowest = constant(-math.inf, select.dtype)
            args = [a if i in (0, shown) else lowest for i, a in enumerate(select.args)]
            found[select] = make("select", args, hint=select.type)
        return found


@once_in
def assumed(block: Block) -> MaskAssumptions | None:
    """Returns the assumptions under which large negative masks in the body of an online loop act
    like -inf; None if no such mask hides elements from all states.
    """
    states = states_of(block)
    masks: list[HidingMask] = []
    floors: dict[Node, float] = {}
    for select in block.all_nodes if states else ():
        side = _filled(select)
        found = _maxima(block, select, _number(select.args[side])) if side else {}
        if found:
            masks.append(HidingMask(select, shown=3 - side))
            for state, level in found.items():
                floors[state] = max(level / 2, floors.get(state, -math.inf))
    return MaskAssumptions(masks, floors) if masks else None


def _filled(select: Node) -> int:
    """Returns which operand of a select, 1 or 2, is a large negative number; 0 for none."""
    if choice(select) is None or not select.dtype.is_float:
        return 0
    sides = [i for i in (1, 2) if -math.inf < _number(select.args[i]) < UNDERFLOW]
    return sides[0] if len(sides) == 1 else 0


def _number(node: Node) -> float:
    """Returns the constant that all elements of a value equal; 0 if it is not such a constant."""
    while shows(node):
        (node,) = node.args
    return float(number(node)) if is_number(node) else 0.0


def _maxima(block: Block, select: Node, fill: float) -> dict[Node, float]:
    """Returns the maxima among the states of an online loop, each with the upper bound of what an
    element adds to it that the mask `select` hides by the large negative number `fill`.

    Empty if the element would contribute to another state. Follows the values through the body: to
    upper bounds, if each maximum is above half of what the element adds to it, and to zeros.
    """
    states = {s.new: s for s in states_of(block) or ()}

    def value(node: Node, known: Mapping[Node, float]) -> float | None:
        if node in states:
            return None
        bound = _bound(node, known, states)
        if bound is not None:
            return bound
        if is_exponential(node):
            return 0.0 if known.get(node.args[0], 0.0) <= UNDERFLOW else None
        zeros = {n: level for n, level in known.items() if not level}
        return 0.0 if hidden_value(node, zeros) == 0.0 else None

    known = {select: fill}
    follow(block, known, value)
    found = {new: known.get(s.part, 0.0) for new, s in states.items() if KIND_OF[new.op] == "max"}
    others = (s for s in states.values() if found.get(s.new, 0.0) >= 0)
    is_nothing = all(KIND_OF[s.new.op] == "sum" and known.get(s.part) == 0.0 for s in others)
    return found if is_nothing else {}


def _bound(node: Node, known: Mapping[Node, float], states: Mapping[Node, State]) -> float | None:
    """Returns the upper bound of a value that negative numbers in `known` set; None for none."""
    most = {n: known[n] for n in node.args if known.get(n, 0.0) < 0}
    total = total_of(node) if is_loop(node) else None
    if total is not None:
        level = known.get(total.part, 0.0)
        return level if KIND_OF[total.new.op] == "max" and level < 0 else None
    if shows(node) or (is_reduction(node) and node.attrs["kind"] == "max"):
        return most.get(node.args[0])
    if choice(node) is not None:
        level = max(most.get(a, _number(a)) for a in node.args[1:])
        return level if level < UNDERFLOW else None
    if len(node.args) != 2:
        return None
    (a, b), terms = node.args, signs(node)
    if a in most and (multiplies(node) or divides(node)) and _is_positive(b):
        return most[a] * (_number(b) if multiplies(node) else 1 / _number(b))
    state = states.get(_bound_of(b))
    added = known.get(state.part, 0.0) if state is not None else 0.0
    if a in most and terms == (1, -1) and added < 0:
        return most[a] - added / 2
    levels = (most[x] for x, sign in zip((a, b), terms or ()) if x in most and sign > 0)
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
