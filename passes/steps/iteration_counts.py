"""Iteration counts: a count of the elements that a mask shows is the number of the iteration.

    %some = lt(%at, n)                                before and after
    %new = add(%count, select(%some, 1.0, 0.0))
    ... = div(%sum, %count)                           ... = div(%sum, cast(%r.0))
    %sum_1 = add(..., select(%some, %x, 0.0))         %sum_1 = select(%some, add(..., %x), %sum)

Positions grow from one iteration to the next: an element that the mask shows comes after elements
that it showed too, so that their count is the same for all lanes. In other iterations, the states
that read the count stay as they are. Divisions by a count are then divisions by one number, and
not by one for each lane.
"""

from __future__ import annotations

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make, remade
from stack.ir.forms import filled
from stack.ir.kernel_ops import loop_parts
from stack.ir.node import Node, topological
from stack.ir.traits import choice, is_loop, repeated, repeats
from stack.passes.steps.intervals import grows
from stack.passes.steps.loops import is_constant
from stack.passes.steps.online import State, in_order, is_none, states_of


def iteration_counts(loop: Node) -> Node | None:
    """Rewrites the updates of states by a masked count in a serial loop; None if it has none."""
    if not is_loop(loop, "serial"):
        return None
    block = loop.blocks[0]
    limits, starts = loop_parts(loop.args, loop.attrs)
    axis, *held = block.params
    begins = dict(zip(held, starts, strict=True))
    states = states_of(block) or []
    count = next((s for s in states if _counts(s, begins[s.held], axis)), None)
    if limits or count is None:
        return None
    test = _test(count)
    readers = [s for s in states if s is not count and count.held in topological([s.new])]
    masks = [n for n in block.nodes if (own := choice(n)) and repeated(own.test) is test]
    tests = {n.shape: n.args[0] for n in masks}
    if not readers or any(s.new.shape not in tests for s in readers):
        return None
    others = set(topological([r for r in block.results if all(r is not s.new for s in readers)]))
    number = make("cast", (axis,), hint=axis.tensor.with_dtype(count.new.dtype))
    more = make("add", (number, constant(1.0, number.dtype)))
    shown = remade([s.new for s in readers], {n: n.args[1] for n in masks if n not in others})
    counts = {count.held: number, count.new: more}
    known = {n: filled(counts[n], n) for n in counts}
    views = [n for n in topological(list(shown.values())) if repeats(n) and n.args[0] in counts]
    known |= {n: filled(counts[n.args[0]], n) for n in views}
    done = remade(list(shown.values()), known)
    found = {
        s.new: make("select", (tests[s.new.shape], done[shown[s.new]], s.held)) for s in readers
    }
    return in_order(loop, found)


def _counts(state: State, start: Node, axis: Node) -> bool:
    """True if a state counts the elements before an end, and positions grow along `axis`."""
    own = choice(repeated(state.part))
    if not (own and KIND_OF[state.new.op] == "sum" and state.kept is state.held):
        return False
    test = repeated(own.test)
    is_one = is_constant(own.yes, 1.0) and is_constant(own.no, 0.0)
    if not (is_one and state.new.dtype.name in ("f32", "f64") and is_none(start, state.new.op)):
        return False
    return test.op == "lt" and grows(repeated(test.args[0]), axis) and axis not in test.args[1].vars


def _test(state: State) -> Node:
    own = choice(repeated(state.part))
    assert own is not None, "it counts elements"
    return repeated(own.test)
