"""Mixed rows: reductions across lines beside what belongs to lines, in one walk over the lines.

A program has a part of the axis that is reduced across the lines of memory. It goes along that part
in tiles of lines, stores what belongs to them, and adds to its own partial results of the
reductions across. A line is held whole where a reduction runs along it, else in blocks.

    gradients of a norm's rows, gain and bias, 4096 rows of 768:
    split r_1 1024; vectorize r_1.1; split r 8; vectorize r.1; compute_with r.0; rfactor r.0;
    pipeline r.0 3; launch 16
"""

from __future__ import annotations

from stack.ir.node import Node
from stack.passes.blocking.reduce import COLUMNS
from stack.passes.nest.emit import axis_names, emit
from stack.passes.policies.mix_space import Space, space_of
from stack.passes.policies.rows import arithmetic
from stack.passes.policies.stepped import Made, Stepped, check_powers
from stack.passes.steps.all import (
    Bind,
    ComputeWith,
    Launch,
    Pipeline,
    Rfactor,
    Split,
    Step,
    Vectorize,
)
from stack.passes.tiling.frame import CannotTile, power_of_two
from stack.target import Gpu

LINES = 8192  # elements of a tile of whole lines
BLOCKS = 4096  # of a tile of blocks of lines
AHEAD = 3  # tiles that are loaded at a time


class MixedRows(Stepped[Gpu]):
    """The kernel of a group with reductions across lines."""

    def nest(self) -> Node:
        """The plain loop nest. Raises CannotTile."""
        space = self.space()
        check_powers(self.group)
        return emit(self.group, root=space.root, reduced=space.reduced)

    def space(self) -> Space:
        """The loop space. Raises CannotTile."""
        space = space_of(self.group.blocks[0])
        if space is None:
            raise CannotTile("it has no reductions across lines besides what belongs to lines")
        return space

    def take(self, made: Made) -> None:
        """Take the steps of the walk."""
        made.take(*self._steps())

    def _steps(self) -> list[Step]:
        space = self.space()
        last = len(space.shape) - 1
        names = axis_names(space.root, space.reduced)
        line, rows = _tile(space)
        kept = [n for a, n in enumerate(names) if n and a not in (space.streamed, last)]
        made: list[Step] = [
            Bind(name, "grid").because("each has lines of its own") for name in kept
        ]
        whole = "a reduction runs along lines: lanes hold all of one"
        part = f"a program has {line} of {space.shape[last]} elements of a line"
        cut = Split(names[last], line).because(whole if space.is_along else part)
        made += [cut, Vectorize(f"{names[last]}.1")]
        walked = names[space.streamed]
        if rows > 1:
            cut = Split(walked, rows).because(f"a tile has {rows} lines of {line} elements")
            made += [cut, Vectorize(f"{walked}.1")]
            walked = f"{walked}.0"
        if -(-space.shape[space.streamed] // rows) > 1:
            if space.loops > 1:
                made.append(ComputeWith(walked).because("each line is read once for all"))
            if rows > 1:
                made.append(Rfactor(walked).because("lines of a tile are summed together once"))
            made.append(Pipeline(walked, AHEAD).because("memory is waited for once"))
        if not space.is_along and line < space.shape[last]:
            made.append(Bind(f"{names[last]}.0", "grid"))
        body = self.group.blocks[0]
        made += arithmetic(body.results, body.params, self.target)
        return [*made, Launch(min(16, max(4, power_of_two(rows * line // 512))))]


def _tile(space: Space) -> tuple[int, int]:
    """Elements of a line, and lines, of a tile."""
    whole = power_of_two(space.shape[-1])
    line = max(2, whole if space.is_along else min(whole, COLUMNS))
    room = min(LINES if space.is_along else BLOCKS, space.most)
    rows = min(power_of_two(space.shape[space.streamed]), power_of_two(room // line + 1) // 2 or 1)
    return line, rows
