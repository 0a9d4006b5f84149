"""reverse: run the iterations of a loop from the last one to the first one.

    loop(%o0) {(%i.0 < 8, ...)       reverse i.0       loop(%o0) {(%i.0 < 8, ...)
      store(..., %i.0, ...) }                            store(..., sub(7, %i.0), ...) }

Under a causal mask, late rows take the most time. If they start first, the short ones fill the
processors at the end. Legal for a serial loop with independent iterations.

Source: longest processing time first (Graham, SIAM Journal on Applied Mathematics, 1969).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.builder import constant, make
from stack.ir.memory import starts_of
from stack.ir.node import Node
from stack.passes.steps.dependences import why_shared
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import why_no_totals
from stack.passes.steps.loops import extent_of, loops_along, why_not_free
from stack.passes.steps.step import LoopStep
from stack.target import Target


@dataclass(frozen=True)
class Reverse(LoopStep, name="reverse"):
    """Reverse the order of the iterations of the loops over an axis."""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        for loop, _ in loops_along(kernel, self.axis):
            yield why_no_totals(loop)
            yield why_shared(loop)

    def change(self, edit: Edit, loop: Node) -> Node:
        block = loop.blocks[0]
        var = block.params[0]
        last = constant(extent_of(loop) - 1, var.dtype)
        body = edit.body(block, {var: make("sub", (last, var))})
        return make("loop", starts_of(loop), loop.attrs, (body,))
