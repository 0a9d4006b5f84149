"""fuse: collapse two perfectly nested loops into one.

    loop(...) {(%i < 4, ...)             fuse i j       loop(...) {(%i < 20, ...)
      loop(...) {(%j < 5, ...)                            load(%p0, div(%i, 5), rem(%i, 5))
        load(%p0, %i, %j)

The fused loop has the name of the outer axis. Its extent is the product of both extents. Legal if
the loops are perfectly nested: the inner loop is the whole body of the outer one. It starts from
the values that the outer loop carries, and its results are the results of the body.

Source: `fuse` of Halide; loop coalescing of Polychronopoulos (ICPP 1987).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.builder import constant, make
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import along, axis_of, extent_of, inner_loop, loops_along, why_no_nest
from stack.passes.steps.online import serial_like
from stack.passes.steps.step import LoopStep
from stack.target import Target


@dataclass(frozen=True)
class Fuse(LoopStep, name="fuse"):
    """Collapse the loops over an axis with the loops over `inner` directly inside of them."""

    inner: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_nest(kernel, self.axis, self.inner)
        inner_loops = loops_along(kernel, self.inner)
        if any(not f.around or axis_of(f.around[-1]) != self.axis for f in inner_loops):
            yield f"a loop over {self.inner} is outside of the loops over {self.axis}"

    def change(self, edit: Edit, loop: Node) -> Node:
        block, inner = loop.blocks[0], inner_loop(loop, self.inner)
        assert inner is not None
        body = inner.blocks[0]
        count = extent_of(inner)
        var = along(self.axis, extent_of(loop) * count, block.params[0])
        size = constant(count, var.dtype)
        known = {
            block.params[0]: make("div", (var, size)),
            body.params[0]: make("rem", (var, size)),
        }
        whole = Block((var, *body.params[1:]), edit.values(body.results, known))
        return make("loop", starts_of(loop), serial_like(loop, inner), (whole,))
