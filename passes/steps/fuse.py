"""fuse: two nested loops become one, along an axis of as many turns as both had.

    loop(...) {(%i < 4, ...)             fuse i j       loop(...) {(%i < 20, ...)
      loop(...) {(%j < 5, ...)                            load(%p0, div(%i, 5), rem(%i, 5))
        load(%p0, %i, %j)

The new axis has the name of the outer one. Legal where the inner loop is all that the outer one
does: it goes on with what the outer one carries, and its results are that of the outer one's turn.

Source: `fuse` of Halide; loop coalescing of Polychronopoulos (ICPP 1987).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import constant, make
from stack.ir.node import Block, Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    along,
    axis_of,
    inner_loop,
    loops_along,
    starts_of,
    why_no_nest,
)
from stack.passes.steps.step import Step
from stack.passes.tiling.loops import extent_of
from stack.target import Target


@dataclass(frozen=True)
class Fuse(Step):
    """Join the loops along an axis with the loops along `inner` that stand in them."""

    name: ClassVar[str] = "fuse"
    axis: str
    inner: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_no_nest(kernel, self.axis, self.inner)
        if why:
            return why
        inner_loops = loops_along(kernel, self.inner)
        if any(not f.around or axis_of(f.around[-1]) != self.axis for f in inner_loops):
            return f"a loop along {self.inner} stands outside of the loops along {self.axis}"
        return ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> Node:
            loop = old.rebuilt(args, blocks=[block])
            inner = inner_loop(loop, self.inner)
            assert inner is not None
            body = inner.blocks[0]
            count = extent_of(inner)
            var = along(self.axis, extent_of(old) * count, block.params[0])
            size = constant(count, var.dtype)
            known = {
                block.params[0]: make("div", (var, size)),
                body.params[0]: make("rem", (var, size)),
            }
            results = edit.remade(body.results, known)
            whole = Block((var, *body.params[1:]), [results[r] for r in body.results])
            return make("loop", starts_of(loop), {"kind": "serial"}, (whole,))

        return edit.change_loops(self.axis, change)
