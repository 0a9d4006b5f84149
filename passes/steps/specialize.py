"""specialize: give the ranges of a loop between which guards change their own code.

    loop(...) {(%j < 5, %o)                    loop(...) {(%j < 5, %o)
      store(%o, load(%p, %j, lt(%j, 3), 0))      %a = loop(0, select(lt(%j, 3), 1, 0), %o) {
    }                                              store(%o, load(%p, %j)) }
                                                 loop(0, select(ge(%j, 3), 1, 0), %a) {
                                                   store(%a, 0) }
                                               }

Each range becomes a loop of one iteration or none, in which the guards are constant. Unlike `peel`,
the loop itself stays whole, so that threads or programs still share all of it. With `at=k` the code
goes into the inner loop over k; threads can then share both loops.

Legal if some guard changes at a constant iteration, and the copies stay below 4096 values.

Source: `specialize` of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stack.ir.builder import constant, make, results_of
from stack.ir.node import Block, Node, topological
from stack.ir.traits import is_loop
from stack.passes.steps.access import conjunction
from stack.passes.steps.edit import Edit
from stack.passes.steps.intervals import split_points
from stack.passes.steps.loops import along, axis_of, held_like, loops_along, why_not_free
from stack.passes.steps.simplify import without_guards
from stack.passes.steps.step import Step
from stack.passes.steps.unroll import why_too_many
from stack.target import Target


@dataclass(frozen=True)
class Specialize(Step, name="specialize"):
    """Specialize the ranges of an axis between the points where guards change.

    Attributes:
        at: the axis of the loops that get the code; by default the same.
    """

    axis: str
    at: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        yield why_not_free(kernel, self.at or self.axis)
        points = split_points(kernel).get(self.axis, ())
        if not points:
            yield f"no guard changes at a constant iteration of {self.axis}"
        for loop, around in loops_along(kernel, self.at or self.axis):
            if not any(axis_of(outer) == self.axis for outer in (*around, loop)):
                yield f"a loop over {self.at} is not inside a loop over {self.axis}"
            yield why_too_many(loop, len(points) + 1)

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        points = split_points(kernel)[self.axis]
        found = loops_along(kernel, self.axis)
        variables = {loop.blocks[0].params[0] for loop, _ in found}

        def change(_: Node, loop: Node) -> Node:
            block = loop.blocks[0]
            needed = {block.params[0], *(v for r in block.results for v in r.vars)}
            mine = [v for v in variables if v in needed]
            # loops over one axis may have different extents, after `partition` or `peel`
            own = [p for p in points if mine and p < int(mine[0].attrs["extent"])]
            return loop.rebuilt(blocks=[_in_ranges(edit, block, mine[0], own)]) if own else loop

        return edit.change_loops(self.at or self.axis, change)


def _in_ranges(edit: Edit, block: Block, var: Node, points: Sequence[int]) -> Block:
    """Returns the body of a loop as several copies, one for each range of a variable between
    `points`; each runs only in its range, with guards simplified.
    """
    held = block.params[1:]
    extent = int(var.attrs["extent"])
    values: Sequence[Node] = held
    # loops before this one have their results already
    fixed = {
        n: n
        for n in topological(block.results)
        if is_loop(n) and var in n.vars and n.vars.isdisjoint(block.params)
    }
    for begin, end in zip([0, *points], [*points, extent], strict=True):
        tests = [make("ge", (var, constant(begin, var.dtype)))] if begin else []
        tests += [make("lt", (var, constant(end, var.dtype)))] if end < extent else []
        test = conjunction(tests)
        assert test is not None, "there are several ranges"
        zero, one = constant(0, var.dtype), constant(1, var.dtype)
        once = along(edit.names.own(f"{var.attrs['name']}.is"), 1, var)
        own = held_like(held, edit.names)
        # indices depend on the inner variable, so that no load is hoisted out of its guard
        known = {var: make("add", (var, once)), **fixed, **dict(zip(held, own, strict=True))}
        ranges = {var: (begin, end - 1)}
        inside = Block((once, *own), edit.values(block.results, known))
        attrs = {"kind": "serial", "limited": True}
        start = [zero, make("select", (test, one, zero)), *values]
        values = results_of(make("loop", start, attrs, (without_guards(edit, inside, ranges),)))
    return Block(block.params, values)
