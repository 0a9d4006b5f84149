"""peel: the last turns of a loop become a loop of their own.

    loop(%o0) {(%r.0 < 8, ...)           peel r.0 2        %first = loop(%o0) {(%r.0 < 6, ...)
                                                           loop(%first) {(%r.0.last < 2, ...)

A condition that holds in the first turns, or in the last ones alone, goes: parts of a
concatenation become plain copies. What the last turns of two loops read is read once, when both are
unrolled. Legal for a serial loop with more turns than are cut off.

Source: index-set splitting (Wolfe, High Performance Compilers, 1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import constant, make, results_of
from stack.ir.node import Block, Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    along,
    axes,
    loops_along,
    starts_of,
    why_not_free,
)
from stack.passes.steps.simplify import substituted
from stack.passes.steps.step import Step
from stack.passes.tiling.loops import extent_of
from stack.target import Target


@dataclass(frozen=True)
class Peel(Step):
    """Cut the last turns off the loops along an axis `a`; they run along `a.last`.

    Attributes:
        turns: how many.
    """

    name: ClassVar[str] = "peel"
    axis: str
    turns: int

    @property
    def last(self) -> str:
        return f"{self.axis}.last"

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_not_free(kernel, self.axis)
        if why:
            return why
        if self.last in axes(kernel):
            return f"axis {self.axis}: there is an axis {self.last} already"
        for loop, _ in loops_along(kernel, self.axis):
            if not 0 < self.turns < extent_of(loop):
                return f"axis {self.axis}: {self.turns} of its {extent_of(loop)} turns"
        return ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> Node:
            var, *held = block.params
            count = extent_of(old) - self.turns
            first = along(self.axis, count, var)
            body = Block((first, *held), substituted(edit, block.results, {var: first}))
            starts = starts_of(old.rebuilt(args, blocks=[block]))
            before = make("loop", starts, old.attrs, (body,))
            last = along(self.last, self.turns, var)
            place = make("add", (last, constant(count, var.dtype)))
            body = Block((last, *held), substituted(edit, block.results, {var: place}))
            return make("loop", results_of(before), old.attrs, (body,))

        return edit.change_loops(self.axis, change)
