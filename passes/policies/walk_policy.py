"""Scheduling policy of streams without matmuls on a GPU: a program loops over a row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.warp_ops import WARP
from stack.passes.policies.reduction_loops import ReductionLoop, busy
from stack.passes.positions.stream_shape import StreamShape
from stack.passes.tiling.frame import power_of_two
from stack.schedule import Axis, Domain, Need, Policy, Prediction, Rules, Schedule, Split
from stack.target import Gpu


class WalkPolicy(Policy):
    """Schedules blocks of k (the streamed axis); each of b programs has one row.

    If memory is contiguous along another axis c instead of k, a program has a block of columns.

    Args:
        reduction_loop: the default block size, warps and prefetch depth for the stream.
        shape: the axes of the stream.
        extent: the extent of the streamed axis.
        columns: the extent of c; 0 without such an axis.
        gpu: the target.
    """

    def __init__(
        self, reduction_loop: ReductionLoop, shape: StreamShape, extent: int, columns: int, gpu: Gpu
    ) -> None:
        self.reduction_loop, self.gpu = reduction_loop, gpu
        self.extent, self.columns, self.is_split = extent, columns, shape.is_split
        many = prod(e for iter_var, e in shape.extents.items() if iter_var != shape.along)
        whole = "" if shape.is_split else "a result has it"
        axes = [Axis("b", many // max(1, columns), "parallel")]
        axes += [Axis("c", columns, "columns")] if columns else []
        self.domain = Domain((*axes, Axis("k", extent, "stream", whole)))
        bindings = {"parallel": (), "columns": ("grid",), "stream": ("serial",)}
        self.rules = Rules(bindings, units={"k": 2})

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        return [(self.complete(Schedule()), None)]

    def complete(self, given: Schedule) -> Schedule:
        loop = self.reduction_loop
        lanes = self._lanes(loop) if self.columns else 1
        usual = [Split("c", lanes, "grid")] if self.columns else []
        usual.append(Split("k", max(2, loop.block // lanes), "serial"))
        return given.filled(Schedule(tuple(usual), loop.warps, loop.ahead))

    def _lanes(self, loop: ReductionLoop) -> int:
        """Picks the number of columns of a program. With more than one tile for each column, parts
        of the columns can fill the processors; see `stream_parts`.
        """
        most = self.gpu.rows.walked_columns
        if loop.is_whole:
            most = loop.block // power_of_two(self.extent)
        lanes = min(power_of_two(self.columns), most)
        if loop.is_whole or not self.is_split:
            programs = prod(a.extent for a in self.domain.axes if a.name != "k")
            lanes = busy(lanes, programs, WARP, self.gpu)
        return lanes

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        return [
            Need("threads", schedule.warps * WARP, self.gpu.threads),
            Need(
                "registers for a tile",
                schedule.block("c", 1) * schedule.block("k"),
                self.gpu.registers,
            ),
        ]
