"""Schedules of streams without products as kernels of blocks: a program walks along a row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.warp_ops import WARP
from stack.passes.blocking.reduce import Walk
from stack.passes.blocking.stream_shape import StreamShape
from stack.schedule import Axis, Domain, Need, Policy, Prediction, Rules, Schedule, Split
from stack.target import Gpu


class WalkPolicy(Policy):
    """Steps of k along a row of the streamed axis, of which b programs have one each.

    Args:
        walk: what suits the stream.
        extent: of the streamed axis.
    """

    def __init__(self, walk: Walk, shape: StreamShape, extent: int, gpu: Gpu) -> None:
        self.walk, self.gpu = walk, gpu
        many = prod(e for mark, e in shape.extents.items() if mark != shape.along)
        whole = "" if shape.is_split else "a result has it"
        self.domain = Domain((Axis("b", many, "parallel"), Axis("k", extent, "stream", whole)))
        self.rules = Rules({"parallel": (), "stream": ("serial",)}, units={"k": 2})

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        return [(self.complete(Schedule()), None)]

    def complete(self, given: Schedule) -> Schedule:
        walk = self.walk
        usual = (Split("k", walk.block, "serial"),)
        return given.filled(Schedule(usual, walk.warps, walk.ahead))

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        return [
            Need("threads", schedule.warps * WARP, self.gpu.threads),
            Need("registers for a tile", schedule.block("k"), self.gpu.registers),
        ]
