"""Rules for the states of serial loops: cheaper updates of what they carry.

First positions: cheaper updates of the position of the best value, in a loop along positions.

    %new = max(%best, %x)                           before and after
    %old = select(is_best(%best, %new), %at, n)     %at_1 = select(is_best(%best, %new), %at, %here)
    %own = select(is_best(%x, %new), %here, n)
    %at_1 = min(%old, %own)

Positions grow from one iteration to the next, so that a position that was found is never after
`%here`. If the old best value remains the best one, its position remains, whether or not `%x` is
equal to it. Otherwise `%x` is the best value. Before the loop, `%at` is the position of the first
iteration, which a best value that is never exceeded has. Half of the comparisons are left.

Iteration counts: a count of the elements that a mask shows is the number of the iteration.

    %some = lt(%at, n)                                before and after
    %new = add(%count, select(%some, 1.0, 0.0))
    ... = div(%sum, %count)                           ... = div(%sum, cast(%r.0))
    %sum_1 = add(..., select(%some, %x, 0.0))         %sum_1 = select(%some, add(..., %x), %sum)

Positions grow from one iteration to the next: an element that the mask shows comes after elements
that it showed too, so that their count is the same for all lanes. In other iterations, all states
stay as they are. Divisions by a count are then divisions by one number, and not by one for each
lane. A count after an iteration is at least 1.

Mean shifts: cheaper updates of a variance in a loop that adds one element in each iteration.

    %mean = div(%sum, max(%n, 1.0))                   before and after, with %n = cast(%r)
    %new = div(add(%sum, %x), add(%n, 1.0))
    %shift = sub(%mean, %new)                         %own = sub(%x, %new)
    ... = mul(%n, mul(%shift, %shift))                ... = div(mul(%own, %own), max(%n, 1.0))

If an iteration adds %x to %n elements, the mean moves by the distance of %x from the new mean, over
%n. The distance is needed anyway: its square is the other term of the update (Welford,
Technometrics, 1962). Half of the multiplications are left, and the difference of two means that are
nearly equal is gone with its rounding error. Before the first iteration, %sum is 0: %own is x - x
then, and both forms are 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from stack.ir.algebra import KIND_OF
from stack.ir.builder import Builder, constant, filled, make, remade
from stack.ir.kernel_ops import loop_parts
from stack.ir.memory import starts_of
from stack.ir.node import Node, topological
from stack.ir.traits import (
    choice,
    converts,
    divides,
    is_loop,
    is_number,
    multiplies,
    number,
    repeated,
    repeats,
    signs,
)
from stack.ir.types import BOOL
from stack.passes.steps.affine import folded, grows, place_of
from stack.passes.steps.loops import is_constant
from stack.passes.steps.online import State, identity_like, in_order, is_none, states_of
from stack.passes.tiling.single_ops import is_best_or_nan


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
    limits, starts = loop_parts(loop.args, loop.attrs)
    axis, *held = block.params
    begins = dict(zip(held, starts, strict=True))
    found: dict[Node, Node] = {}
    for state in () if limits else states:
        here = _here(state, states, begins, axis)
        if here is not None:
            found[state.new] = state.kept.rebuilt([*state.kept.args[:2], here])
            first = {axis: constant(0, axis.dtype)}  # values in the first iteration
            for n in topological([here], known=first):
                first[n] = folded(n, n.rebuilt([first.get(a, a) for a in n.args]))
            begins[state.held] = first[here]
    return in_order(loop, found).rebuilt(args=[begins[h] for h in held]) if found else None


def _here(
    state: State, states: list[State], starts: Mapping[Node, Node], axis: Node
) -> Node | None:
    """Returns the position of an iteration's element, if a state is the first position of the best
    value; None for other states.
    """
    kept, own = choice(state.kept), _position(state)
    if not (_begins_empty(state, starts, "min") and kept and own and kept.yes is state.held):
        return None
    best = next((s for s in states if kept.test is is_best_or_nan(Builder(), s.held, s.new)), None)
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
    if not (is_known and same_end and own.is_best is is_best_or_nan(Builder(), value, best.new)):
        return None
    if not grows(own.here, axis):
        return None
    if own.test is None:
        return own.here
    return _masked(own.test, own.here, state.new) if _is_limit(own.test, axis) else None


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


def _is_inside(own: _Position) -> bool:
    """True if all positions of elements are before the end."""
    if not is_number(own.end):
        return False
    place = place_of(own.here, casts=True)
    ends = place.ends() if place is not None else None
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


def iteration_counts(loop: Node) -> Node | None:
    """Rewrites the updates of states by a masked count in a serial loop; None if it has none."""
    if not is_loop(loop, "serial"):
        return None
    block = loop.blocks[0]
    limits, starts = loop_parts(loop.args, loop.attrs)
    axis, *held = block.params
    begins = dict(zip(held, starts, strict=True))
    states = states_of(block) or []
    counted = {s: test for s in states if (test := _counted(s, begins[s.held], axis)) is not None}
    if limits or not counted:
        return None
    count, test = next(iter(counted.items()))
    masks = [n for n in block.nodes if (own := choice(n)) and repeated(own.test) is test]
    tests = {n.shape: n.args[0] for n in masks}
    others = [s for s in states if s is not count]
    if all(count.held not in topological([s.new]) for s in others):
        return None
    if masks and any(s.new.shape not in tests for s in others):
        return None
    number = make("cast", (axis,), hint=axis.tensor.with_dtype(count.new.dtype))
    one = constant(1.0, number.dtype)
    more = make("add", (number, one))
    shown: dict[Node, Node] = {}
    for node in topological([s.new for s in others]):
        shown[node] = shown[node.args[1]] if node in masks else remade([node], shown)[node]
    counts = {count.held: number, count.new: more, shown.get(count.new, count.new): more}
    for node in topological([shown[s.new] for s in others]):
        known = counts.get(node.args[0]) if node.args and node not in counts else None
        if known is not None and repeats(node):
            counts[node] = known
        elif known is not None and node.op == "max" and is_constant(node.args[1], 1.0):
            counts[node] = known if known is more else make("max", (known, one))
    known = {n: filled(value, n) for n, value in counts.items()}
    done = remade([shown[s.new] for s in others], known)
    found = {s.new: done[shown[s.new]] for s in others}
    for state in others if masks else ():
        masked = tests[state.new.shape], found[state.new], state.held
        found[state.new] = make("select", masked)
    return in_order(loop, found)


def _counted(state: State, start: Node, axis: Node) -> Node | None:
    """Returns the test of a state that counts the elements before an end, if positions grow along
    `axis`, and True for one that counts all elements; None for other states.
    """
    is_sum = KIND_OF[state.new.op] == "sum" and state.kept is state.held
    is_float = state.new.dtype.name in ("f32", "f64")
    if not (is_sum and is_float and is_none(start, state.new.op)):
        return None
    part = repeated(state.part)
    if is_constant(part, 1.0):
        return constant(True, BOOL)
    own = choice(part)
    if own is None or not (is_constant(own.yes, 1.0) and is_constant(own.no, 0.0)):
        return None
    return repeated(own.test) if _is_limit(own.test, axis) else None


def _is_limit(test: Node, axis: Node) -> bool:
    """True if a test is false from some iteration on, and true before it."""
    test = repeated(test)
    is_below = test.op == "lt" and axis not in test.args[1].vars
    return is_below and grows(repeated(test.args[0]), axis)


def mean_shifts(loop: Node) -> Node | None:
    """Rewrites the shifts of means in a serial loop; None if it has none."""
    if not is_loop(loop, "serial"):
        return None
    block = loop.blocks[0]
    axis, *held = block.params
    sums = {h for h, start in zip(held, starts_of(loop), strict=True) if is_none(start, "add")}
    found: dict[Node, Node] = {}
    for node in topological(block.results):
        if not multiplies(node) or not multiplies(node.args[1]):
            continue
        count = repeated(node.args[0])
        if not (converts(count) and count.args[0] is axis):
            continue
        owns = [_own(shift, count, sums) for shift in node.args[1].args]
        if owns[0] is not None and owns[1] is not None:
            least = make("max", (count, constant(1.0, count.dtype)))
            found[node] = make("div", (make("mul", (owns[0], owns[1])), filled(least, node)))
    if not found:
        return None
    made = remade(block.results, found)
    return in_order(loop, {r: made[r] for r in block.results if made[r] is not r})


def _own(shift: Node, count: Node, sums: Collection[Node]) -> Node | None:
    """Returns the distance of the element that an iteration adds from the new mean, if `shift` is
    the difference of the means before and after it; None for other nodes.
    """
    if signs(shift) != (1, -1) or not all(map(divides, shift.args)):
        return None
    (held, before), (new, after) = (mean.args for mean in shift.args)
    if held not in sums or signs(new) != (1, 1) or new.args[0] is not held:
        return None
    least, more = repeated(before), make("add", (count, constant(1.0, count.dtype)))
    is_least = KIND_OF.get(least.op) == "max" and is_constant(least.args[1], 1.0)
    if not (is_least and repeated(least.args[0]) is count and repeated(after) is more):
        return None
    return make("sub", (new.args[1], shift.args[1]))
