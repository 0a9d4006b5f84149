"""split: one loop becomes two, an outer one over blocks and an inner one inside of a block.

    loop(...) {(%r < 1000, ...)          split r 64       loop(...) {(%r.0 < 16, ...)
      load(%p0, %r)                                         loop(...) {(%r.1 < 64, ...)
                                                              %at = add(mul(%r.0, 64), %r.1)
                                                              load(%p0, %at, lt(%at, 1000), 0.0)

Where the block does not divide the axis, `tail` says what becomes of the last block:

- `mask`: its turns past the end load 0, add nothing to what the loop carries, and store nothing;
- `peel`: it is a loop of its own, with as many turns as are left.

A block that is no shorter than the axis leaves one loop, along the inner axis. Legal for a serial
loop and any block of one element or more.

Source: `split` with a tail strategy of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import constant, make, results_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_number, number
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import guarded
from stack.passes.steps.linear import is_multiple, linear
from stack.passes.steps.loops import (
    along,
    axes,
    bound_to,
    held_like,
    is_serial,
    loops_along,
    why_no_axis,
)
from stack.passes.steps.step import Step
from stack.passes.tiling.loops import extent_of
from stack.target import Target

TAILS = ("mask", "peel")


@dataclass(frozen=True)
class Split(Step):
    """Cut the loops along an axis `a` into loops along `a.0` and `a.1`.

    Attributes:
        block: turns of the inner loop.
        tail: what becomes of a last block that is not full.
    """

    name: ClassVar[str] = "split"
    axis: str
    block: int
    tail: str = "mask"

    @property
    def outer(self) -> str:
        return f"{self.axis}.0"

    @property
    def inner(self) -> str:
        return f"{self.axis}.1"

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        if self.block < 1:
            return f"axis {self.axis}: a block has one element or more, not {self.block}"
        if self.tail not in TAILS:
            return f"tail={self.tail}: the last block can be treated by {' or '.join(TAILS)}"
        why = why_no_axis(kernel, self.axis)
        if why:
            return why
        taken = {self.outer, self.inner} & axes(kernel).keys()
        if taken:
            return f"axis {self.axis}: there is an axis {min(taken)} already"
        for loop, _ in loops_along(kernel, self.axis):
            if not is_serial(loop):
                return f"axis {self.axis} is bound to {bound_to(loop)}: split it before"
        return ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> Node:
            extent = extent_of(old)
            if self.tail == "peel" and extent > self.block and extent % self.block:
                whole = extent - extent % self.block
                made = _Cut(self, block, whole, edit).loop(0, args)
                rest = _Cut(self, block, extent - whole, edit).loop(whole, results_of(made))
                return rest
            return _Cut(self, block, extent, edit).loop(0, args)

        return edit.change_loops(self.axis, change)


class _Cut:
    """A loop over some of the turns of another, in blocks."""

    def __init__(self, step: Split, block: Block, extent: int, edit: Edit) -> None:
        self.step, self.block, self.extent, self.edit = step, block, extent, edit

    def loop(self, first: int, start: Sequence[Node]) -> Node:
        """The loops from a turn of the old loop on."""
        step, (var, *held) = self.step, self.block.params
        count = -(-self.extent // step.block)
        # a block that is longer than the axis still has lanes past its end where it is masked
        width = min(step.block, self.extent) if step.tail == "peel" else step.block
        outer, inner = along(step.outer, count, var), along(step.inner, width, var)
        place = inner
        if count > 1:
            place = make("add", (make("mul", (outer, constant(width, var.dtype))), inner))
        if first:
            place = make("add", (place, constant(first, var.dtype)))
        test = None
        if count * width > self.extent:
            test = make("lt", (place, constant(first + self.extent, var.dtype)))
        results = self.edit.remade(self.block.results, {var: place})
        body = Block((inner, *held), [results[r] for r in self.block.results])
        body = self._whole_quotients(body, inner, width)
        if test is not None:
            body = guarded(self.edit, body, test)
        if count == 1:
            return make("loop", start, {"kind": "serial"}, (body,))
        around = held_like(held, self.edit.names)
        made = make("loop", around, {"kind": "serial"}, (body,))
        whole = Block((outer, *around), results_of(made))
        return make("loop", start, {"kind": "serial"}, (whole,))

    def _whole_quotients(self, body: Block, inner: Node, width: int) -> Block:
        """The body where quotients that are one number for all of a block do not move in it."""

        def visit(old: Node, args: Sequence[Node], blocks: Sequence[Block]) -> Node:
            if old.op == "div" and old.dtype == inner.dtype and is_number(args[1]):
                found = linear(args[0], inner)
                is_whole = not old.tensor.rank and number(args[1]) % width == 0
                if found is not None and found[0] == 1 and is_whole:
                    first = found[1] if found[1] is not None else constant(0, inner.dtype)
                    if is_multiple(first, width):
                        return make("div", (first, args[1]))
            return old.rebuilt(args, blocks=blocks)

        return self.edit.rewritten(body, visit)
