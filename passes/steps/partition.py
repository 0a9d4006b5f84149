"""partition: cut a loop at constant iterations into several loops, all of them over the same axis.

    loop(%o) {(%j < 100, ...)                  partition j 20
      %test = ge(%j, 20)
      %a = load(%p0, %j, ...)                  %first = loop(%o) {(%j < 20, ...)
      %b = load(%p1, add(%j, -20), ...)          store(..., load(%p0, %j), %j) }
      store(..., select(%test, %b, %a), %j) }  loop(%first) {(%j < 80, ...)
                                                 store(..., load(%p1, %j), add(%j, 20)) }

Guards that become constant in a part are removed: the parts of a concatenation become plain copies.
Later steps about the axis apply to all parts. To treat the last part differently, use `peel`.

Legal for a serial loop and increasing points inside of it, if all parts together stay below 4096
values, not counting loads, indices, guards and selections.

Source: index-set splitting (Wolfe, High Performance Compilers, 1996); loop partitioning of Halide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stack.ir.builder import constant, make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Node
from stack.ir.traits import choice, is_load
from stack.ir.types import TensorType
from stack.passes.steps.affine import place_of
from stack.passes.steps.edit import Edit
from stack.passes.steps.intervals import is_condition
from stack.passes.steps.loops import along, extent_of, loops_along, why_not_free
from stack.passes.steps.simplify import without_guards
from stack.passes.steps.step import LoopStep
from stack.passes.steps.unroll import MOST
from stack.target import Target


@dataclass(frozen=True)
class Partition(LoopStep, name="partition"):
    """Cut the loops over an axis at some iterations.

    Attributes:
        points: the first iteration of each part but the first, separated by commas.
    """

    points: str

    @property
    def numbers(self) -> list[int]:
        """The iterations at which loops are cut; empty if the text is not a list of integers."""
        words = self.points.split(",")
        return [int(word) for word in words] if all(word.isdigit() for word in words) else []

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        points = self.numbers
        if not points:
            yield f"axis {self.axis}: {self.points!r} is no list of iterations, as 20,40"
        for loop, _ in loops_along(kernel, self.axis):
            ends = [0, *points, extent_of(loop)]
            if any(a >= b for a, b in pairwise(ends)):
                yield f"axis {self.axis}: {self.points} do not increase from 1 to {ends[-1] - 1}"
            values = (len(points) + 1) * (2 + sum(map(_is_work, loop.blocks[0].all_nodes)))
            if values > MOST:
                yield f"axis {self.axis}: {values} values in all parts, the most is {MOST}"

    def change(self, edit: Edit, loop: Node) -> list[Node]:
        values: Sequence[Node] = starts_of(loop)
        for part, begin, end in _parts(edit, loop, [0, *self.numbers, extent_of(loop)]):
            values = results_of(part_of(edit, part, begin, end, values, self.axis))
        return list(values)


def _parts(edit: Edit, loop: Node, ends: Sequence[int]) -> Iterator[tuple[Node, int, int]]:
    """Yields a loop for each part, its first iteration and the one after its last.

    The loop lacks some of the guards that are constant in the part: they are removed for halves of
    the parts first, so that the time does not grow with the square of their number.
    """
    if len(ends) == 2:
        yield loop, ends[0], ends[1]
        return
    middle = len(ends) // 2
    (block,) = loop.blocks
    for own in (ends[: middle + 1], ends[middle:]):
        half = block
        if len(own) > 2:
            half = without_guards(edit, block, {block.params[0]: (own[0], own[-1] - 1)})
        yield from _parts(edit, loop.rebuilt(blocks=[half]), own)


def part_of(
    edit: Edit, loop: Node, begin: int, end: int, values: Sequence[Node], axis: str
) -> Node:
    """Builds the loop over the iterations from `begin` up to `end` of a loop, without the guards
    that are constant in them. `values` are the carried values before it, `axis` is its axis.
    """
    var, *held = loop.blocks[0].params
    own = along(axis, end - begin, var)
    place = make("add", (own, constant(begin, var.dtype))) if begin else own
    body = edit.body(loop.blocks[0], {var: place}, (own, *held))
    return make("loop", values, loop.attrs, (without_guards(edit, body),))


def _is_work(node: Node) -> bool:
    """True if a value costs code in each part: no load, guard, selection or index."""
    if is_load(node) or choice(node) is not None or not isinstance(node.type, TensorType):
        return False
    is_index = node.dtype.kind == "i" and place_of(node) is not None
    return not (is_index or is_condition(node))
