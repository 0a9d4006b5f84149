"""fission: split a loop in two: the first computes a value of each iteration, the second uses it.

    loop(%o0) {(%i < 8, ...)             fission i k       %m = loop(alloc()) {(%i < 8, %sums)
      %s = loop(0.0) {(%k < 64, ...)                         %s = loop(0.0) {(%k < 64, ...)
      store(%o0, exp(%s), %i)                                store(%sums, %s, %i)
                                                           loop(%o0) {(%i < 8, ...)
                                                             store(%o0, exp(load(%m, %i)), %i)

The value is the result of an inner loop. It is kept in local memory, one element or tile for each
iteration. Legal for a serial loop whose body has one loop over the inner axis that carries values,
not memory, and does not depend on what the outer loop carries. CPUs only: a program of a GPU has no
local memory.

Source: loop distribution with scalar expansion (Kuck et al., POPL 1981).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import constant, make, results_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_loop
from stack.ir.types import TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import axis_of, is_memory, loops_along, starts_of, why_not_free
from stack.passes.steps.step import Step
from stack.passes.tiling.frame import static
from stack.passes.tiling.loops import extent_of
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Fission(Step):
    """Split the loops over an axis in two, after the loop over `inner` in their body.

    Attributes:
        axis: the axis.
        inner: the axis of the loop whose results are kept in local memory.
    """

    name: ClassVar[str] = "fission"
    axis: str
    inner: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        if isinstance(target, Gpu):
            return "a program of a GPU has no local memory"
        why = why_not_free(kernel, self.axis)
        if why:
            return why
        for loop, _ in loops_along(kernel, self.axis):
            why = self._why_not_apart(loop)
            if why:
                return why
        return ""

    def _why_not_apart(self, loop: Node) -> str:
        block = loop.blocks[0]
        found = _inner(block, self.inner)
        if len(found) != 1:
            count = f"{len(found)} loops" if found else "no loop"
            return f"the body of {self.axis} has {count} over {self.inner}, not one"
        (inner,) = found
        if any(map(is_memory, starts_of(inner))):
            return f"the loop over {self.inner} carries memory, not values"
        held = next((p for p in block.params[1:] if p in inner.vars), None)
        if held is not None:
            return f"the loop over {self.inner} depends on {held.attrs['name']}, which is carried"
        for value in results_of(inner):
            size = static(value.tensor.bytes) * extent_of(loop)
            if size > LARGEST_LOCAL:
                return f"{size} bytes of results; local memory has at most {LARGEST_LOCAL}"
        return ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> list[Node]:
            (inner,) = _inner(block, self.inner)
            var, values = block.params[0], results_of(inner)
            memories = [_memory(edit, v, extent_of(old)) for v in values]
            kept = [Node("var", (), {"name": edit.names.own("sums")}, m.type) for m in memories]
            stores = [
                make("store", (k, v, *_place(var, v))) for k, v in zip(kept, values, strict=True)
            ]
            first = make("loop", memories, {"kind": "serial"}, (Block((var, *kept), stores),))
            known = {
                v: edit.note(v, make("load", (full, *_place(var, v)), hint=v.type))
                for v, full in zip(values, results_of(first), strict=True)
            }
            done = edit.remade(block.results, known)
            rest = Block(block.params, [done[r] for r in block.results])
            return results_of(old.rebuilt(args, blocks=[rest]))

        return edit.change_loops(self.axis, change)


def _inner(block: Block, axis: str) -> list[Node]:
    """The loops over an axis in a block, not those nested deeper."""
    return [n for n in block.nodes if is_loop(n) and axis_of(n) == axis]


def _memory(edit: Edit, value: Node, count: int) -> Node:
    """Local memory for a value of each iteration."""
    held = TensorType(value.dtype, (count, *value.shape), "local")
    return make("alloc", (), {"name": edit.names.own("sums")}, hint=held)


def _place(var: Node, value: Node) -> list[Node]:
    """The index of the value of one iteration."""
    return [var, *[constant(0, var.dtype)] * value.tensor.rank]
