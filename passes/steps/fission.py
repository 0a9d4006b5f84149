"""fission: split a loop in two: the first computes a value of each iteration, the second uses it.

    loop(%o0) {(%i < 8, ...)             fission i k       %m = loop(alloc()) {(%i < 8, %sums)
      %s = loop(0.0) {(%k < 64, ...)                         %s = loop(0.0) {(%k < 64, ...)
      store(%o0, exp(%s), %i)                                store(%sums, %s, %i)
                                                           loop(%o0) {(%i < 8, ...)
                                                             store(%o0, exp(load(%m, %i)), %i)

The value is the result of an inner loop. It is kept in local memory, one element or tile for each
iteration. If several loops contain the same inner loop, one first loop serves all of them. Legal
for serial loops of which at least one has a loop over the inner axis in its body. The first such
loop of a body is taken: it carries values, not memory, and does not depend on what the outer loop
carries. CPUs only: a program of a GPU has no local memory.

Source: loop distribution with scalar expansion (Kuck et al., POPL 1981).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stack.ir.builder import results_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_loop
from stack.passes.steps.edit import Edit
from stack.passes.steps.local_values import loaded, memory_for, stored, why_not_kept
from stack.passes.steps.loops import along, axes, axis_of, loops_along, why_not_free
from stack.passes.steps.step import Step
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Fission(Step, name="fission", only=Cpu):
    """Split the loops over an axis in two, after the loop over `inner` in their body.

    Attributes:
        inner: the axis of the loop whose results are kept in local memory.
        into: the axis of the first loop; by default the same.
    """

    axis: str
    inner: str
    into: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        found = [(loop, _inner(loop.blocks[0], self.inner)) for loop in loops]
        if not any(inner for _, inner in found):
            yield f"the body of {self.axis} has no loop over {self.inner}"
        if self.into in axes(kernel):
            yield f"axis {self.into} exists already"
        yield from (why_not_kept(loop, i[0], results_of(i[0])) for loop, i in found if i)

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        first: dict[tuple[Node, Node], Sequence[Node]] = {}

        def change(_: Node, loop: Node) -> list[Node]:
            block = loop.blocks[0]
            found = _inner(block, self.inner)
            if not found:
                return results_of(loop)
            inner, var = found[0], block.params[0]
            if (var, inner) not in first:
                first[var, inner] = self._first(edit, var, results_of(inner))
            known = {
                v: edit.note(v, loaded(full, var, v))
                for v, full in zip(results_of(inner), first[var, inner], strict=True)
            }
            return results_of(loop.rebuilt(blocks=[edit.body(block, known)]))

        return edit.change_loops(self.axis, change)

    def _first(self, edit: Edit, var: Node, values: Sequence[Node]) -> Sequence[Node]:
        """Builds the loop that stores `values` of each iteration. Returns the memories."""
        own = along(self.into, int(var.attrs["extent"]), var) if self.into else var
        made = edit.values(values, {var: own})
        memories = [memory_for(edit, v, own, "sums") for v in values]
        return stored(edit, own, memories, lambda _: made)


def _inner(block: Block, axis: str) -> list[Node]:
    """Returns the loops over an axis that are directly in a block, without those nested deeper."""
    return [n for n in block.nodes if is_loop(n) and axis_of(n) == axis]
