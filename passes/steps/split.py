"""split: tile a loop: an outer loop over blocks, and an inner loop over the elements of a block.

    loop(...) {(%r < 1000, ...)          split r 64       loop(...) {(%r.0 < 16, ...)
      load(%p0, %r)                                         loop(...) {(%r.1 < 64, ...)
                                                              %at = add(mul(%r.0, 64), %r.1)
                                                              load(%p0, %at, lt(%at, 1000), 0.0)

If the block size does not divide the extent, `tail` selects the treatment of the last block:

- `mask`: iterations past the end are masked: they load 0, add nothing to totals, store nothing;
- `front`: like `mask`, but the first block is the partial one. If a loop runs backwards through
  memory, blocks then start at multiples of the block size, so that wide loads are aligned;
- `peel`: the remaining iterations become a loop of their own;
- `overlap`: the last block starts early enough to be whole, and repeats some iterations. The loop
  over blocks gets the attribute `overlap`.

If the block is not smaller than the extent, only the inner loop remains. Legal for a serial loop
and a block size of at least 1. `overlap` needs iterations that may be repeated: each stores to its
own elements, and none adds to a total or reads memory that the loop stores to.

Source: `split` with a tail strategy of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stack.ir.bounds import INT32, Integers
from stack.ir.builder import constant, make, results_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_number, number
from stack.passes.steps.affine import start_along
from stack.passes.steps.edit import Edit, Visit
from stack.passes.steps.guard import guarded
from stack.passes.steps.loops import (
    along,
    axes,
    bound_to,
    extent_of,
    held_like,
    is_serial,
    loops_along,
    why_no_axis,
    why_not_repeated,
)
from stack.passes.steps.online import is_online, serial_like
from stack.passes.steps.step import LoopStep
from stack.target import Target

TAILS = ("mask", "front", "peel", "overlap")
MASKED = ("mask", "front")
DIGITS = ("div", "rem")


@dataclass(frozen=True)
class Split(LoopStep, name="split"):
    """Tile the loops over an axis `a`: an outer loop over `a.0`, an inner loop over `a.1`.

    Attributes:
        block: the block size: iterations of the inner loop.
        tail: `mask`, `front`, `peel` or `overlap`: the treatment of a partial block.
    """

    block: int
    tail: str = "mask"

    @property
    def outer(self) -> str:
        """The axis of the loop over blocks."""
        return f"{self.axis}.0"

    @property
    def inner(self) -> str:
        """The axis of the loop inside of a block."""
        return f"{self.axis}.1"

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.block < 1:
            yield f"axis {self.axis}: the block size is at least 1, not {self.block}"
        if self.tail not in TAILS:
            yield f"axis {self.axis}: the tail is one of {', '.join(TAILS)}, not {self.tail}"
        yield why_no_axis(kernel, self.axis)
        taken = {self.outer, self.inner} & axes(kernel).keys()
        if taken:
            yield f"axis {self.axis}: axis {min(taken)} exists already"
        for loop, _ in loops_along(kernel, self.axis):
            padded = -(-extent_of(loop) // self.block) * self.block
            if self.tail in MASKED and padded > max(INT32[1], 2 * extent_of(loop)):
                yield (
                    f"axis {self.axis}: masked blocks of {self.block} are {padded} iterations for"
                    f" {extent_of(loop)}, and indices end at {INT32[1]}"
                )
            if not is_serial(loop):
                yield f"axis {self.axis} is bound to {bound_to(loop)}: split it before"
            if self.tail == "overlap" and padded != extent_of(loop) > self.block:
                yield why_not_repeated(loop)

    def change(self, edit: Edit, loop: Node) -> Node:
        extent = extent_of(loop)
        whole = extent - extent % self.block
        if self.tail != "peel" or whole in (0, extent):
            return self._tiled(edit, loop, 0, extent, loop.args)
        made = self._tiled(edit, loop, 0, whole, loop.args)
        return self._tiled(edit, loop, whole, extent - whole, results_of(made))

    def _tiled(
        self, edit: Edit, loop: Node, first: int, extent: int, start: Sequence[Node]
    ) -> Node:
        """Builds the loops over blocks and inside a block that replace `extent` iterations of a
        loop from `first` on, with the initial carried values `start`.
        """
        attrs, (var, *held) = serial_like(loop), loop.blocks[0].params
        count = -(-extent // self.block)
        # a masked block keeps its size even if the extent is smaller
        width = self.block if self.tail in MASKED else min(self.block, extent)
        outer, inner = along(self.outer, count, var), along(self.inner, width, var)
        place, masked = inner, count * width - extent
        if count > 1:
            begin = make("mul", (outer, constant(width, var.dtype)))
            if masked and self.tail == "overlap":
                begin = make("min", (begin, constant(extent - width, var.dtype)))
            place = make("add", (begin, inner))
        if first:
            place = make("add", (place, constant(first, var.dtype)))
        test = None
        if masked and self.tail == "front":
            left = make("sub", (constant(count * width - 1, var.dtype), place))
            test = make("lt", (left, constant(extent, var.dtype)))
            place = make("sub", (place, constant(masked, var.dtype)))
        elif masked and self.tail == "mask":
            test = make("lt", (place, constant(first + extent, var.dtype)))
        body = edit.body(loop.blocks[0], {var: place}, (inner, *held))
        if any(n.op in DIGITS and n.dtype == inner.dtype for n in loop.blocks[0].all_nodes):
            body = edit.rewritten(body, _whole_digits(inner, width))
        if test is not None:
            body = guarded(edit, body, test, is_online(loop))
        if count == 1:
            return make("loop", start, attrs, (body,))
        around = held_like(held, edit.names)
        made = make("loop", around, attrs, (body,))
        if masked and self.tail == "overlap":
            attrs = {**attrs, "overlap": True}
        return make("loop", start, attrs, (Block((outer, *around), results_of(made)),))


def _whole_digits(inner: Node, width: int) -> Visit:
    """Returns a rewrite, for `Edit`, of integer divisions whose quotient is the same for all
    iterations of a block.

    If the block size divides n and `first`, `(first + inner) / n` becomes `first / n`, and the
    remainder becomes that of `first`, plus `inner`.
    """

    def visit(_: Node, made: Node) -> Node:
        if made.op in DIGITS and made.dtype == inner.dtype and is_number(made.args[1]):
            first, size = start_along(made.args[0], inner), made.args[1]
            if first is None or made.tensor.rank or number(size) % width:
                return made
            begin = first.node(made.dtype)
            if Integers().divisor(begin) % width == 0:
                digit = make(made.op, (begin, size))
                return digit if made.op == "div" else make("add", (digit, inner))
        return made

    return visit
