"""unroll: replace a loop by a copy of its body for each iteration.

    loop(0.0) {(%r < 2, %acc)           unroll r        add(add(0.0, load(%p0, 0)), load(%p0, 1))
      add(%acc, load(%p0, %r)) }

Legal for a serial loop whose copies have at most 4096 values together, and whose body does not use
local memory of its own.

Source: `unroll` of Halide and TensorIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.builder import constant
from stack.ir.memory import starts_of
from stack.ir.node import Node
from stack.passes.steps.affine import folded
from stack.passes.steps.dependences import why_kept
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import axis_of, extent_of, loops_along, why_not_free
from stack.passes.steps.step import LoopStep
from stack.target import Target

MOST = 4096  # values; more code would not fit in the instruction cache


def why_too_many(loop: Node, copies: int) -> str:
    """Returns why so many copies of a loop's body have too many values; "" if they do not."""
    values = copies * len(loop.blocks[0].all_nodes)
    if values <= MOST:
        return ""
    return f"axis {axis_of(loop)}: {values} values in all copies, the most is {MOST}"


@dataclass(frozen=True)
class Unroll(LoopStep, name="unroll"):
    """Unroll the loops over an axis."""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        for loop, _ in loops_along(kernel, self.axis):
            yield why_kept(loop)
            yield why_too_many(loop, extent_of(loop))

    def change(self, edit: Edit, loop: Node) -> list[Node]:
        block = loop.blocks[0]
        var, *held = block.params
        values = list(starts_of(loop))
        for turn in range(extent_of(loop)):
            known = dict(zip(held, values, strict=True))
            known[var] = constant(turn, var.dtype)
            values = edit.values(block.results, known, visit=folded)
        return values
