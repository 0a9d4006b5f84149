"""hold: what the last turns of a first walk read stays in registers for the second walk.

    for r.0 < 8: total += x[r.0]          hold r.0 2       for r.0 < 6: total += x[r.0]
    for r.0 < 8: y[r.0] = x[r.0] / total                   total += x[6]; total += x[7]
                                                           y[6] = x[6] / total; y[7] = ...
                                                           for r.0 < 6: y[r.0] = x[r.0] / total

The last turns of both walks are written out, so each of their tiles is one value, read once. The
second walk takes them first, which makes room. Legal where some loop along the axis sums, another
stores, and nothing else runs along it. Of 16-bit floats the tile itself is kept, not the wider one
that was made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import constant, make, results_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_load
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    along,
    is_memory,
    loops_along,
    starts_of,
    why_not_free,
)
from stack.passes.steps.step import Step, why_no_gpu
from stack.passes.steps.stored import why_kept
from stack.passes.tiling.loops import extent_of
from stack.target import Target


@dataclass(frozen=True)
class Hold(Step):
    """Keep the tiles of the last turns along an axis.

    Attributes:
        turns: how many.
    """

    name: ClassVar[str] = "hold"
    axis: str
    turns: int

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_no_gpu(self, target) or why_not_free(kernel, self.axis)
        if why:
            return why
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        for loop in loops:
            if not 0 < self.turns < extent_of(loop):
                return f"axis {self.axis}: {self.turns} of its {extent_of(loop)} turns"
            why = why_kept(loop)
            if why:
                return why
        if all(map(_stores, loops)) or not any(map(_stores, loops)):
            return f"axis {self.axis} is not walked twice, to sum and to store"
        return ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> list[Node]:
            loop = old.rebuilt(args, blocks=[block])
            count = extent_of(old) - self.turns
            values: Sequence[Node] = starts_of(loop)
            if _stores(loop):
                values = _written_out(edit, block, values, range(count, count + self.turns), True)
                return _first(edit, old, block, values, count)
            values = _first(edit, old, block, values, count)
            return _written_out(edit, block, values, range(count, count + self.turns), False)

        return edit.change_loops(self.axis, change)


def _stores(loop: Node) -> bool:
    return all(map(is_memory, starts_of(loop)))


def _first(edit: Edit, old: Node, block: Block, values: Sequence[Node], count: int) -> list[Node]:
    """The results of the first turns."""
    var, *held = block.params
    first = along(str(var.attrs["name"]), count, var)
    done = edit.remade(block.results, {var: first})
    body = Block((first, *held), [done[r] for r in block.results])
    return results_of(make("loop", values, old.attrs, (body,)))


def _written_out(
    edit: Edit, block: Block, values: Sequence[Node], turns: range, again: bool
) -> list[Node]:
    """The results of turns one after another; `again`: what they read was held."""
    var, *held = block.params
    for turn in turns:
        known = {**dict(zip(held, values, strict=True)), var: constant(turn, var.dtype)}
        done = edit.remade(block.results, known)
        if again:
            read = {done.get(n, n) for n in block.all_nodes if is_load(n) and var in n.vars}
            kept = {n: make("again", (n,)) for n in read if n.dtype.bits == 16 and n.tensor.rank}
            done |= edit.remade([done[r] for r in block.results], kept) if kept else {}
            values = [done.get(done[r], done[r]) for r in block.results]
        else:
            values = [done[r] for r in block.results]
    return list(values)
