"""Masks of a large negative number that could be masks of -inf: what follows from one.

    %x = select(%test, -1e9, %score)         at most -1e9 where it hides
    %m = max(%old, reduce(%x))               assumed to be above -5e8
    exp(sub(%x, %m))                         exp of at most -5e8: 0

The values of a loop body are visited once, with the bounds that a hidden element sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make, results_of
from stack.ir.equivalence import once_in
from stack.ir.memory import starts_of
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
from stack.passes.steps.bounds import bounds_in
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    along,
    branch,
    extent_of,
    held_like,
    is_serial,
    loops_along,
    why_no_axis,
)
from stack.passes.steps.online import (
    HidingMask,
    State,
    hidden_value,
    is_online,
    states_of,
    total_of,
)
from stack.passes.steps.step import LoopStep
from stack.target import Target


@dataclass(frozen=True)
class Assume(LoopStep, name="assume"):
    """Take large negative masks in the online loops over an axis as masks of -inf.

      %s = loop(...) {online=true}           assume r.0  %fast = loop(...) {online=true}
        { %x = select(%test, -1e9, %score)                 { %x = select(%test, -inf, %score) ... }
          ... }                                          %fails: some maximum is not above -5e8
                                                         %s = loop(0, %fails, %fast)
                                                           {kind="branch"} { the loop on the left }

    exp(-1e9 - m) is 0 in a row whose maximum m is far above -1e9. With -inf the same sums come out,
    and step `bound` can leave whole blocks out. If some row of a program has no such maximum, for
    example because all of it is masked, the program runs the loop as it was written.

    Legal for an online loop over tiles, if such a mask hides elements from all states, and its
    condition limits the iterations: `bounds.py`.
    """

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_axis(kernel, self.axis)
        if not any(_found(loop) for loop, _ in loops_along(kernel, self.axis)):
            yield f"no large negative mask of positions hides blocks of {self.axis}"

    def change(self, edit: Edit, loop: Node) -> Node:
        found = _found(loop)
        return loop if found is None else _checked(edit, loop, found)


def limits_loops(kernel: Node, axis: str, size: int) -> bool:
    """True if large negative masks would limit the loops over an axis in blocks of this size."""
    return any(_limiting(loop, size) is not None for loop, _ in loops_along(kernel, axis))


def _found(loop: Node) -> MaskAssumptions | None:
    """Returns the large negative masks of a loop over tiles that may be treated as -inf.

    None if it has none, or if skipping masked blocks would not shorten the loop.
    """
    found = _limiting(loop)
    return found if found is not None and any(m.select.tensor.rank for m in found.masks) else None


def _limiting(loop: Node, size: int = 1) -> MaskAssumptions | None:
    """Returns the assumptions about the masks of a loop.

    None if it is no serial online loop or has no such masks, or if they would not let a whole block
    of `size` iterations be skipped.
    """
    if not (is_online(loop) and is_serial(loop)):
        return None
    block = loop.blocks[0]
    found = assumed(block)
    if found is None:
        return None
    limits = [b for mask in found.masks for b in bounds_in(block, mask).found]
    return found if any(not b.is_tail(extent_of(loop), size) for b in limits) else None


def _checked(edit: Edit, loop: Node, found: MaskAssumptions) -> Node:
    """Builds two versions of a loop: one with -inf in its masks, then a branch that runs the
    original loop if some row of the program violates the assumptions.
    """
    block = loop.blocks[0]
    known: dict[Node, Node] = {}
    for select, shown in found.masks:
        lowest = constant(-math.inf, select.dtype)
        args = [a if i in (0, shown) else lowest for i, a in enumerate(select.args)]
        known[select] = make("select", args, hint=select.type)
    fast = loop.rebuilt(blocks=[edit.body(block, known)])
    results = results_of(fast)
    fails = _fails(dict(zip(block.results, results, strict=True)), found.floors)
    var, *held = block.params
    once = along(edit.names.own("again"), 1, var)
    # from the iteration on: what does not depend on it would be computed outside of the branch
    limits = (once, constant(extent_of(loop), var.dtype))
    attrs = {**loop.attrs, "limited": True, "ahead": 1}
    again = make("loop", [*limits, *starts_of(loop)], attrs, (block,))
    body = Block((once, *held_like(held, edit.names)), results_of(again))
    return branch(fails, results, body)


def _fails(held: Mapping[Node, Node], floors: Mapping[Node, float]) -> Node:
    """Builds a scalar condition: whether some row of a state that is a maximum does not exceed its
    floor, the number that the -inf masks assume it to be above.
    """
    wrong: Node | None = None
    for state, floor in floors.items():
        least = held[state]
        if least.tensor.rank:
            axes = tuple(range(least.tensor.rank))
            least = make("reduce", (least,), {"axes": axes, "kind": "min"})
        below = make("not", (make("gt", (least, constant(floor, least.dtype))),))
        wrong = below if wrong is None else make("or", (wrong, below))
    assert wrong is not None
    return wrong


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
    if a in most and (multiplies(node) or divides(node)) and 0 < _number(b) < math.inf:
        return most[a] * (_number(b) if multiplies(node) else 1 / _number(b))
    state = states.get(_bound_of(b))
    added = known.get(state.part, 0.0) if state is not None else 0.0
    if a in most and terms == (1, -1) and added < 0:
        return most[a] - added / 2
    levels = (most[x] for x, sign in zip((a, b), terms or ()) if x in most and sign > 0)
    level = next(levels, 0.0)
    return level if level <= ABSORBS else None


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
