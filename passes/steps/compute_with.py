"""compute_with: fuse independent loops over the same axis.

    %a = loop(0.0) {(%r < 64, %acc)  ...}      compute_with r      %a, %b = loop(0.0, 0.0) {
    %b = loop(0.0) {(%r < 64, %acc_1) ...}                           (%r < 64, %acc, %acc_1) ...}

A load that both loops contain is then executed once, and a value that both compute is carried once:
carried values that start equal and stay equal. A loop that needs the result of another one is
not fused with it. Legal if one block has two serial loops over the axis with the same trip count,
and neither needs the result of the other.

Source: `compute_with` of Halide; loop fusion (Allen and Kennedy, 2001, section 6.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stack.ir.builder import make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node, topological
from stack.ir.traits import is_loop, is_memory
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    axis_of,
    bodies,
    extent_of,
    held_like,
    is_serial,
    loops_along,
    stores_only,
    why_no_axis,
)
from stack.passes.steps.online import serial_like
from stack.passes.steps.step import Step
from stack.target import Target


@dataclass(frozen=True)
class ComputeWith(Step, name="compute_with"):
    """Fuse independent loops over an axis."""

    axis: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_axis(kernel, self.axis)
        blocks = bodies(kernel) if len(loops_along(kernel, self.axis)) > 1 else []
        if any(any(_groups(block, self.axis)) for block in blocks):
            return
        yield f"no two serial loops over {self.axis} in one block are independent and equally long"

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def visit(_: Node, made: Node) -> Node:
            return made.rebuilt(blocks=list(map(fused, made.blocks)))

        def fused(block: Block) -> Block:
            while (group := next(_groups(block, self.axis), None)) is not None:
                block = edit.body(block, _as_one(edit, group))
            return block

        return edit.finished(fused(edit.everywhere(visit).blocks[0]).results)


def _groups(block: Block, axis: str) -> Iterator[list[Node]]:
    """Yields groups of loops in a block that can be fused: independent, serial, equally long."""
    loops = [n for n in block.nodes if is_loop(n) and axis_of(n) == axis and is_serial(n)]
    behind = {loop: set(topological([loop])) for loop in loops}
    for first in loops:
        group = [first]
        for other in loops:
            is_apart = all(other not in behind[n] and n not in behind[other] for n in group)
            if other is not first and is_apart and extent_of(other) == extent_of(first):
                group.append(other)
        if len(group) > 1:
            yield group


def _as_one(edit: Edit, group: Sequence[Node]) -> dict[Node, Node]:
    """Fuses several loops into one. Returns the replacement of each of their results."""
    held: list[Node] = []
    results: list[Node] = []
    group = sorted(group, key=lambda loop: not stores_only(loop))
    for loop in group:  # loops that carry only memory come first
        block = loop.blocks[0]
        own = held_like(block.params[1:], edit.names)  # two loops may carry the same variable
        held += own
        results += edit.values(block.results, dict(zip(block.params[1:], own, strict=True)))
    var = group[0].blocks[0].params[0]
    starts = [s for loop in group for s in starts_of(loop)]
    first = _first_equal(edit, starts, held, results)
    kept = list(dict.fromkeys(first))
    known_as = {held[i]: held[k] for i, k in enumerate(first) if i != k}
    results = edit.values(results, known_as) if known_as else results
    block = Block((var, *(held[k] for k in kept)), [results[k] for k in kept])
    made = make("loop", [starts[k] for k in kept], serial_like(*group), (block,))
    values = dict(zip(kept, results_of(made), strict=True))
    old = [result for loop in group for result in results_of(loop)]
    return dict(zip(old, (values[k] for k in first), strict=True))


def _first_equal(
    edit: Edit, starts: Sequence[Node], held: Sequence[Node], results: Sequence[Node]
) -> list[int]:
    """Returns for each value that a loop carries the index of the first carried value that equals
    it in all iterations; its own index if there is none before.

    Values with equal starts are assumed to be equal, until an iteration computes different ones:
    optimistic value numbering (Alpern, Wegman and Zadeck, POPL 1988).
    """
    first = [i if is_memory(held[i]) else starts.index(s) for i, s in enumerate(starts)]
    while True:
        known = {held[i]: held[k] for i, k in enumerate(first) if i != k}
        if not known:
            return first
        keys = list(zip(first, edit.values(results, known), strict=True))
        refined = [keys.index(key) for key in keys]
        if refined == first:
            return first
        first = refined
