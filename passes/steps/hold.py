"""hold: keep the last tiles that a reduction loop loads in registers for the loops after it.

    for r.0 < 8: total += x[r.0]          hold r.0 2       for r.0 < 6: total += x[r.0]
    for r.0 < 8: y[r.0] = x[r.0] / total                   total += t6 = x[6]; total += t7 = x[7]
                                                           y[6] = t6 / total; y[7] = t7 / total
                                                           for r.0 < 6: y[r.0] = x[r.0] / total

The last iterations of the first loop also give the tiles that they load. Those of later loops are
unrolled, and use these tiles. A loop that stores runs them first, which frees the registers early.
Tiles of 16-bit floats are kept as they are loaded, not after their conversion to 32 bits. What
loops inside load is not kept, nor what a loop further out would use. Legal for two or more serial
loops over the axis, of which one reduces, if all have at least N iterations and use no local
memory. GPUs only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stack.ir.builder import constant, filled, make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_load
from stack.passes.steps.affine import folded
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    along,
    axis_of,
    extent_of,
    loops_along,
    stores_only,
    why_kept,
    why_not_free,
)
from stack.passes.steps.partition import part_of
from stack.passes.steps.step import Step
from stack.target import Gpu, Target

Tiles = dict[Node, Node]  # a load of a tile, and the tile in registers


@dataclass(frozen=True)
class Hold(Step, name="hold", only=Gpu):
    """Keep the tiles of the last iterations over an axis in registers.

    Attributes:
        turns: the number of iterations.
    """

    axis: str
    turns: int

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        for loop in loops:
            if not 0 < self.turns <= extent_of(loop):
                yield f"axis {self.axis}: cannot keep {self.turns} of {extent_of(loop)} iterations"
            yield why_kept(loop)
        if all(map(stores_only, loops)) or len(loops) < 2:
            yield f"axis {self.axis}: needs a loop that reduces, and another one after it"

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        order = loops_along(kernel, self.axis)
        outside = order[0].around
        place = {found.loop: number for number, found in reversed(list(enumerate(order)))}
        held: Tiles = {}

        def change(old: Node, loop: Node) -> list[Node]:
            count = extent_of(old) - self.turns
            turns, again = range(count, count + self.turns), place[old]
            # tiles are visible in the loops around the first loop only
            seen = held if order[again].around[: len(outside)] == outside else {}
            values: Sequence[Node] = starts_of(loop)
            if again and stores_only(loop):
                values = _reused(edit, loop, values, turns, again, seen)
                return _first(edit, loop, values, count)
            values = _first(edit, loop, values, count)
            if again:
                return _reused(edit, loop, values, turns, again, seen)
            return _loaded(edit, loop, values, turns, held)

        return edit.change_loops(self.axis, change)


def _first(edit: Edit, loop: Node, values: Sequence[Node], count: int) -> list[Node]:
    """Builds a loop over the first `count` iterations of a loop. Returns its results."""
    return results_of(part_of(edit, loop, 0, count, values, axis_of(loop))) if count else [*values]


def _loaded(
    edit: Edit, loop: Node, values: Sequence[Node], turns: range, held: Tiles
) -> list[Node]:
    """Builds the iterations `turns` of the first loop so that they also return the tiles that they
    load, which `held` records. Returns the carried values after them.

    Each is a loop of one iteration: its tiles are not loaded before the loops before it end.
    """
    block = loop.blocks[0]
    var, *carried = block.params
    loads = [n for n in block.nodes if is_load(n) and var in n.vars and n.tensor.rank]
    for turn in turns:
        own = along(str(var.attrs["name"]), turn + 1, var)
        starts = [filled(constant(0, load.dtype), load) for load in loads]
        tiles = [Node("var", (), {"name": edit.names.own("held")}, s.type) for s in starts]
        results = edit.values([*block.results, *loads], {var: own})
        limits = [constant(turn, var.dtype), constant(turn + 1, var.dtype)]
        attrs = {**loop.attrs, "limited": True}
        body = Block((own, *carried, *tiles), results)
        made = results_of(make("loop", [*limits, *values, *starts], attrs, (body,)))
        values = made[: len(carried)]
        loaded = edit.values(loads, {var: constant(turn, var.dtype)}, visit=folded)
        held.update(zip(loaded, made[len(carried) :], strict=True))
    return list(values)


def _reused(
    edit: Edit, loop: Node, values: Sequence[Node], turns: range, again: int, held: Tiles
) -> list[Node]:
    """Builds the iterations `turns` of a later loop, unrolled, with the tiles in `held` in place of
    their loads. Returns the carried values after them.

    `again`: the number of loops before that have used the same tiles. Each one converts tiles of
    16-bit floats on its own, behind ops `again`, so that registers hold the narrow ones.
    """
    block = loop.blocks[0]
    var, *carried = block.params
    loads = [n for n in block.nodes if is_load(n) and var in n.vars]
    for turn in turns:
        known = {**dict(zip(carried, values, strict=True)), var: constant(turn, var.dtype)}
        for load, loaded in zip(loads, edit.values(loads, known, visit=folded), strict=True):
            if loaded in held:
                known[load] = held[loaded]
                for _ in range(again if load.dtype.bits == 16 else 0):
                    known[load] = make("again", (known[load],))
        values = edit.values(block.results, known, visit=folded)
    return list(values)
