"""First positions: cheaper updates of the position of the best value, in a loop along positions.

    %new = max(%best, %x)                           before and after
    %old = select(is_best(%best, %new), %at, n)     %old = select(is_best(%best, %new), %at, %here)
    %own = select(is_best(%x, %new), %here, n)      %at_1 = min(%old, %here)
    %at_1 = min(%old, %own)

Positions grow from one iteration to the next, so that a position that was found is never after
`%here`. If the old best value remains the best one, its position remains, whether or not `%x` is
equal to it. Otherwise `%x` is the best value. The minimum is for the first iteration only: there is
no position yet. Half of the comparisons are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stack.ir.algebra import KIND_OF
from stack.ir.builder import make
from stack.ir.kernel_ops import loop_parts
from stack.ir.node import Node
from stack.ir.traits import choice, is_loop, is_number, number, repeated, repeats
from stack.passes.steps.intervals import WHOLE, grows, place_of
from stack.passes.steps.online import State, identity_like, in_order, is_none, states_of


class _Position(NamedTuple):
    """The contribution of an iteration to the position of the best value.

    Attributes:
        test: the condition that this iteration has an element; None if all have one.
        is_best: the condition that the element is the best one.
        here: its position.
        end: one past the last position.
    """

    test: Node | None
    is_best: Node
    here: Node
    end: Node


def first_positions(loop: Node) -> Node | None:
    """Rewrites the updates of first positions in a serial loop; None if it has none."""
    if not is_loop(loop, "serial"):
        return None
    block = loop.blocks[0]
    states = states_of(block) or []
    starts = dict(zip(block.params[1:], loop_parts(loop.args, loop.attrs)[1], strict=True))
    found: dict[Node, Node] = {}
    for state in states:
        made = _update(state, states, starts, block.params[0])
        if made is not None:
            found[state.new] = made
    if not found:
        return None
    return in_order(loop, found)


def _update(
    state: State, states: list[State], starts: Mapping[Node, Node], axis: Node
) -> Node | None:
    """Returns the cheaper update of a state of a loop over `axis`; None if the state is no first
    position.
    """
    kept, own = choice(state.kept), _position(state)
    if not (_begins_empty(state, starts, "min") and kept and own and kept.yes is state.held):
        return None
    best = next((s for s in states if kept.test is _is_best(s.held, s.new)), None)
    if best is None or best.kept is not best.held:
        return None
    is_known = _begins_empty(best, starts, "max") or _begins_empty(best, starts, "min")
    value = best.part
    if own.test is not None:
        picked = choice(value)
        if picked is None or picked.test is not own.test or not is_none(picked.no, best.new.op):
            return None
        value = picked.yes
    same_end = kept.no is own.end and _is_inside(own)
    if not (is_known and same_end and own.is_best is _is_best(value, best.new)):
        return None
    if not grows(own.here, axis):
        return None
    here = own.here if own.test is None else _masked(own.test, own.here, state.new)
    return make("min", (make("select", (kept.test, state.held, here)), here))


def _position(state: State) -> _Position | None:
    """Returns the contribution of an iteration to a state that may be a position."""
    own, test = choice(state.part), None
    if own and is_none(own.no, state.new.op):
        test, own = own.test, choice(own.yes)
    return _Position(test, *own) if own else None


def _begins_empty(state: State, starts: Mapping[Node, Node], kind: str) -> bool:
    """True if a state is the minimum or maximum of what the iterations contribute."""
    op = state.new.op
    return KIND_OF[op] == kind and is_none(starts[state.held], op)


def _is_best(value: Node, best: Node) -> Node:
    """Returns the condition that a value is the best one, or nan."""
    same = make("eq", (value, best))
    return make("or", (same, make("ne", (value, value)))) if value.dtype.is_float else same


def _is_inside(own: _Position) -> bool:
    """True if all positions of elements are before the end."""
    if not is_number(own.end):
        return False
    place = place_of(own.here)
    ends = place.ends(WHOLE) if place is not None else None
    if ends is not None and ends[1] < number(own.end):
        return True
    if own.test is None:
        return False
    return repeated(own.test) is make("lt", (repeated(own.here), own.end))


def _masked(test: Node, here: Node, like: Node) -> Node:
    """Returns the position where there is an element, else the identity of the minimum."""
    none = repeated(identity_like(like))
    if repeats(test) and test.op == here.op and test.attrs == here.attrs:
        made = make("select", (test.args[0], here.args[0], none))
        return make(here.op, (made,), here.attrs, hint=here.type)
    return make("select", (test, here, none))
