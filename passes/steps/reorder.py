"""reorder: interchange two perfectly nested loops.

    loop(%o0) {(%i < 4, ...)             reorder i j       loop(%o0) {(%j < 5, ...)
      loop(...) {(%j < 5, ...)                               loop(...) {(%i < 4, ...)

Legal if the loops are perfectly nested, and no dependence prevents the interchange: each iteration
stores to its own elements, and other loop-carried values are totals, which can be reassociated.

Source: loop interchange (Allen and Kennedy, PLDI 1984); `reorder` of Halide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import make, results_of
from stack.ir.node import Block, Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import why_no_totals
from stack.passes.steps.loops import (
    inner_loop,
    loops_along,
    starts_of,
    why_no_nest,
)
from stack.passes.steps.step import Step
from stack.passes.steps.stored import why_shared
from stack.target import Target


@dataclass(frozen=True)
class Reorder(Step):
    """Interchange the loops over an axis with the loops over `inner` directly inside of them."""

    name: ClassVar[str] = "reorder"
    axis: str
    inner: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_no_nest(kernel, self.axis, self.inner)
        if why:
            return why
        for loop, _ in loops_along(kernel, self.axis):
            inner = inner_loop(loop, self.inner)
            assert inner is not None
            why = why_no_totals(inner) or why_shared(loop)
            if why:
                return why
        return ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> Node:
            loop = old.rebuilt(args, blocks=[block])
            inner = inner_loop(loop, self.inner)
            assert inner is not None
            body = inner.blocks[0]
            turned = Block((block.params[0], *body.params[1:]), body.results)
            within = make("loop", block.params[1:], {"kind": "serial"}, (turned,))
            whole = Block((body.params[0], *block.params[1:]), results_of(within))
            return make("loop", starts_of(loop), {"kind": "serial"}, (whole,))

        return edit.change_loops(self.axis, change)
