"""unroll: the turns of a loop are written one after another.

    loop(0.0) {(%r < 2, %acc)           unroll r        add(add(0.0, load(%p0, 0)), load(%p0, 1))
      add(%acc, load(%p0, %r)) }

Legal for a serial loop whose turns, written out, are at most 4096 values.

Source: `unroll` of Halide and TensorIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import loops_along, starts_of, why_not_free
from stack.passes.steps.step import Step
from stack.passes.steps.stored import why_kept
from stack.passes.tiling.loops import extent_of
from stack.target import Target

MOST = 4096  # values; more make code that no cache of instructions holds


def why_too_many(loop: Node, copies: int) -> str:
    """Why so many copies of a loop's block are too many; "" where they are not."""
    values = copies * len(loop.blocks[0].all_nodes)
    return f"{values} values in all turns, the most is {MOST}" if values > MOST else ""


@dataclass(frozen=True)
class Unroll(Step):
    """Write the turns of the loops along an axis one after another."""

    name: ClassVar[str] = "unroll"
    axis: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_not_free(kernel, self.axis)
        if why:
            return why
        for loop, _ in loops_along(kernel, self.axis):
            why = why_kept(loop)
            if why:
                return why
            why = why_too_many(loop, extent_of(loop))
            if why:
                return f"axis {self.axis}: {why}"
        return ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> list[Node]:
            var, *held = block.params
            values = list(starts_of(old.rebuilt(args, blocks=[block])))
            for turn in range(extent_of(old)):
                known = dict(zip(held, values, strict=True))
                done = edit.remade(block.results, {**known, var: constant(turn, var.dtype)})
                values = [done[r] for r in block.results]
            return values

        return edit.change_loops(self.axis, change)
