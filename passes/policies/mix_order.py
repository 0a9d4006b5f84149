"""Column reductions fused with row-wise work on a GPU, as in the gradients of a norm.

A program loops over rows of memory, a tile of some rows at a time. It stores the results of these
rows, and accumulates the column reductions. If there is also a reduction along rows, a tile has
whole rows; otherwise each program has a block of the columns.

    gradients of the rows, gain and bias of a norm, 4096 rows of 768:
    split r_1 1024; vectorize r_1.1; split r 8; vectorize r.1; compute_with r.0; rfactor r.0;
    pipeline r.0 3; launch 16
"""

from __future__ import annotations

from functools import cached_property

from stack.ir.node import Node
from stack.passes.nest.emit import axis_names, emit
from stack.passes.policies.mix_order_space import MixOrderSpace, space_of
from stack.passes.policies.reduction_loops import warps_of, whole_column_run
from stack.passes.policies.rows import arithmetic, evictions
from stack.passes.policies.step_lowering import LoweredKernel, StepLowering, check_powers
from stack.passes.steps.primitives import (
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


class MixOrderLowering(StepLowering[Gpu]):
    """Lowers a group with column reductions and row-wise work."""

    @cached_property
    def nest(self) -> Node:
        """The plain loop nest of the group. Raises CannotTile if the group is no column reduction
        fused with row-wise work.
        """
        check_powers(self.group)
        return emit(self.group, root=self.space.root, reduced=self.space.reduced)

    @cached_property
    def space(self) -> MixOrderSpace:
        """The axes of the group with their roles. Raises CannotTile if it is no column reduction
        fused with row-wise work.
        """
        space = space_of(self.group.blocks[0], self.target)
        if space is None:
            raise CannotTile("it has no reduction of columns with other results of the same rows")
        return space

    def take(self, made: LoweredKernel) -> None:
        """Applies the loop transformations of the policy to the kernel."""
        made.take(*self._steps())

    def _steps(self) -> list[Step]:
        space = self.space
        last = len(space.shape) - 1
        names = axis_names(space.root, space.reduced)
        line, rows, warps = self._tile()
        kept = [n for a, n in enumerate(names) if n and a not in (space.streamed, last)]
        made: list[Step] = [
            Bind(name, "grid").because("iterations are independent") for name in kept
        ]
        whole = "a tile has whole rows, because a reduction runs along them"
        part = f"a program has {line} of {space.shape[last]} columns"
        cut = Split(names[last], line).because(whole if space.is_along else part)
        made += [cut, Vectorize(f"{names[last]}.1")]
        walked = names[space.streamed]
        if rows > 1:
            cut = Split(walked, rows).because(f"a tile has {rows} rows of {line} elements")
            made += [cut, Vectorize(f"{walked}.1")]
            walked = f"{walked}.0"
        if -(-space.shape[space.streamed] // rows) > 1:
            if space.is_shared:
                made.append(ComputeWith(walked).because("each row is loaded once for all loops"))
            if rows > 1:
                made.append(Rfactor(walked).because("partial sums are reduced after the loop"))
            made.append(
                Pipeline(walked, self.target.mixes.prefetch).because(
                    "loads overlap with computation"
                )
            )
        if not space.is_along and line < space.shape[last]:
            made.append(Bind(f"{names[last]}.0", "grid"))
        body = self.group.blocks[0]
        made += arithmetic(body.results) + evictions(body.results, self.target)
        return [*made, Launch(warps)]

    def _tile(self) -> tuple[int, int, int]:
        """Picks the tile of a program: the elements of a row, the rows, and the warps."""
        space, gpu = self.space, self.target
        extent, whole = space.shape[space.streamed], power_of_two(space.shape[-1])
        run = 0
        if not space.is_along and extent <= gpu.rows.column_in_tile:
            run = whole_column_run(power_of_two(extent), self.group.blocks[0].params, gpu)
        line = max(2, whole if space.is_along else min(whole, max(gpu.rows.columns, run)))
        room = gpu.mixes.whole_tile if space.is_along else gpu.mixes.part_tile
        room = min(room, space.most_elements(gpu))
        rows = min(power_of_two(extent), power_of_two(room // line + 1) // 2 or 1)
        if run and rows >= extent:
            return line, rows, max(1, line // run)
        return line, rows, warps_of(rows * line, gpu, least=4)
