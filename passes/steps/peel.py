"""peel: split the last iterations of a loop off into a loop of their own.

    loop(%o0) {(%r.0 < 8, ...)           peel r.0 2        %first = loop(%o0) {(%r.0 < 6, ...)
                                                           loop(%first) {(%r.0.last < 2, ...)

Loops inside of the peeled one get the suffix `.last` too, so that later steps can give the rest
other tiles. Guards that become constant in one of the loops are removed: the parts of a
concatenation become plain copies. If two peeled loops are unrolled, their common loads are executed
once. Legal for a serial loop with more than N iterations.

Source: index-set splitting (Wolfe, High Performance Compilers, 1996).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.builder import results_of
from stack.ir.memory import starts_of
from stack.ir.node import Node
from stack.ir.traits import is_loop
from stack.passes.steps.edit import Edit, Visit
from stack.passes.steps.loops import along, axes, axis_of, extent_of, loops_along, why_not_free
from stack.passes.steps.partition import part_of
from stack.passes.steps.step import LoopStep
from stack.target import Target

LAST = ".last"  # the suffix of peeled axes


@dataclass(frozen=True)
class Peel(LoopStep, name="peel"):
    """Peel the last iterations of the loops over an axis `a` into loops over `a.last`.

    Attributes:
        turns: the number of iterations to peel.
    """

    turns: int

    @property
    def last(self) -> str:
        """The axis of the peeled loops."""
        return f"{self.axis}{LAST}"

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        known = axes(kernel)
        for loop, _ in loops_along(kernel, self.axis):
            inside = [axis_of(inner) for inner in loop.blocks[0].all_nodes if is_loop(inner)]
            taken = known.keys() & {f"{axis}{LAST}" for axis in (self.axis, *inside)}
            if taken:
                yield f"axis {self.axis}: axis {min(taken)} exists already"
            if not 0 < self.turns < extent_of(loop):
                yield f"axis {self.axis}: cannot peel {self.turns} of {extent_of(loop)} iterations"

    def change(self, edit: Edit, loop: Node) -> Node:
        extent = extent_of(loop)
        count = extent - self.turns
        before = part_of(edit, loop, 0, count, starts_of(loop), self.axis)
        rest = part_of(edit, loop, count, extent, results_of(before), self.last)
        return rest.rebuilt(blocks=[edit.rewritten(rest.blocks[0], _renamed(edit))])


def _renamed(edit: Edit) -> Visit:
    """Returns a rewrite that adds the suffix `.last` to the axes of loops."""

    def visit(_: Node, made: Node) -> Node:
        if not is_loop(made):
            return made
        var, *held = made.blocks[0].params
        own = along(f"{axis_of(made)}{LAST}", extent_of(made), var)
        return made.rebuilt(blocks=[edit.body(made.blocks[0], {var: own}, (own, *held))])

    return visit
