"""Scheduling policy of streams without matmuls on a GPU: a program loops over a row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.warp_ops import WARP
from stack.passes.policies.reduction_loops import ReductionLoop
from stack.passes.positions.stream_shape import StreamShape
from stack.schedule import Axis, Domain, Need, Policy, Prediction, Rules, Schedule, Split
from stack.target import Gpu


class WalkPolicy(Policy):
    """Schedules blocks of k (the streamed axis); each of b programs has one row.

    Args:
        reduction_loop: the default block size, warps and prefetch depth for the stream.
        shape: the axes of the stream.
        extent: the extent of the streamed axis.
        gpu: the target.
    """

    def __init__(
        self, reduction_loop: ReductionLoop, shape: StreamShape, extent: int, gpu: Gpu
    ) -> None:
        self.reduction_loop, self.gpu = reduction_loop, gpu
        many = prod(e for iter_var, e in shape.extents.items() if iter_var != shape.along)
        whole = "" if shape.is_split else "a result has it"
        self.domain = Domain((Axis("b", many, "parallel"), Axis("k", extent, "stream", whole)))
        self.rules = Rules({"parallel": (), "stream": ("serial",)}, units={"k": 2})

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        return [(self.complete(Schedule()), None)]

    def complete(self, given: Schedule) -> Schedule:
        reduction_loop = self.reduction_loop
        usual = (Split("k", reduction_loop.block, "serial"),)
        return given.filled(Schedule(usual, reduction_loop.warps, reduction_loop.ahead))

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        return [
            Need("threads", schedule.warps * WARP, self.gpu.threads),
            Need("registers for a tile", schedule.block("k"), self.gpu.registers),
        ]
