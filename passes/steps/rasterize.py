"""rasterize: order the programs of a grid in groups of rows, which share operands in the cache.

    loop(%o0) {kind="grid"} {(%i.0 < 32, ...)      rasterize j.0 8
      loop(...) {kind="grid"} {(%j.0 < 16, ...)      loop(...) {group=8, kind="grid"} {(%j.0 ...)

Programs are numbered along the columns of 8 rows of tiles before the next 8 rows. Programs that run
at the same time then load few rows of the left operand and few columns of the right one. Legal for
a loop that is bound to the grid, directly inside of another one that is. GPUs only.

Source: "grouped ordering" in the matrix multiplication tutorial of Triton; threadblock
rasterization of CUTLASS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.node import Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import inner_loop, loops_along, why_no_axis
from stack.passes.steps.step import LoopStep
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Rasterize(LoopStep, name="rasterize", only=Gpu):
    """Order the programs of the loops over an axis and the loop around each in groups.

    Attributes:
        axis: the axis of the inner loop.
        rows: iterations of the outer loop in a group.
    """

    rows: int

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_axis(kernel, self.axis)
        if self.rows < 1:
            yield f"axis {self.axis}: a group has at least 1 row, not {self.rows}"
        for loop, around in loops_along(kernel, self.axis):
            if loop.attrs["kind"] != "grid":
                yield f"axis {self.axis} is not bound to the grid: bind it before"
            if not around or inner_loop(around[-1], self.axis) is None:
                yield f"the loop over {self.axis} is not directly inside of another one"

    def change(self, edit: Edit, loop: Node) -> Node:
        return loop.rebuilt(attrs={**loop.attrs, "group": self.rows})
