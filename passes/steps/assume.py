"""assume: take masks of a large negative number as masks of -inf, and check that after the loop.

    %s = loop(...) {online=true}           assume r.0     %fast = loop(...) {online=true}
      { %x = select(%test, -1e9, %score)                    { %x = select(%test, -inf, %score) ... }
        ... }                                             %fails: some maximum is not above -5e8
                                                          %s = loop(0, %fails, %fast)
                                                            {kind="branch"} { the loop on the left }

exp(-1e9 - m) is 0 in a row whose maximum m is far above -1e9. With -inf the same sums come out, and
step `bound` can leave whole blocks out. If some row of a program has no such maximum, for example
because all of it is masked, the program runs the loop as it was written.

Legal for an online loop over tiles, if such a mask hides elements from all states, and its
condition limits the iterations: `mask_assumptions.py`, `bounds.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stack.ir.builder import constant, make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.passes.steps.bounds import bounds_in
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import extent_of, held_like, is_serial, loops_along, why_no_axis
from stack.passes.steps.mask_assumptions import MaskAssumptions, assumed
from stack.passes.steps.online import is_online
from stack.passes.steps.step import LoopStep
from stack.target import Target


@dataclass(frozen=True)
class Assume(LoopStep, name="assume"):
    """Take large negative masks in the online loops over an axis as masks of -inf."""

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
    fast = loop.rebuilt(blocks=[edit.body(block, found.replaced())])
    results = results_of(fast)
    fails = _fails(dict(zip(block.results, results, strict=True)), found.floors)
    var, *held = block.params
    once = Node("var", (), {"name": edit.names.own("again"), "extent": 1}, var.type)
    # from the iteration on: what does not depend on it would be computed outside of the branch
    limits = (once, constant(extent_of(loop), var.dtype))
    attrs = {**loop.attrs, "limited": True, "ahead": 1}
    again = make("loop", [*limits, *starts_of(loop)], attrs, (block,))
    body = Block((once, *held_like(held, edit.names)), results_of(again))
    zero = constant(0, var.dtype)
    test = make("cast", (fails,), hint=fails.tensor.with_dtype(var.dtype))
    return make("loop", [zero, test, *results], {"kind": "branch", "limited": True}, (body,))


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
