"""Scheduling policy of streams with matmuls on a GPU: rows of a program, elements of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import contractions
from stack.ir.warp_ops import MATRIX, WARP
from stack.passes.policies.stream_extents import extents, in_parts, tables
from stack.passes.positions.stream_shape import StreamShape, is_in_memory
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.schedule import Axis, Domain, Need, Policy, Prediction, Rules, Schedule, Split
from stack.target import Gpu


def _schedule(rows: int, step: int, warps: int = 0, stages: int = 0) -> Schedule:
    return Schedule((Split("m", rows, "grid"), Split("k", step, "serial")), warps, stages)


MEASURED = (  # tiles of attention that compile to fast code; tuning tries them
    *(_schedule(128, 64, 8, 2), _schedule(128, 64, 8, 3), _schedule(128, 128, 8, 2)),
    *(_schedule(128, 32, 8, 3), _schedule(64, 64, 4, 3), _schedule(64, 32, 4, 3)),
    _schedule(64, 128, 4, 2),
)
TALLEST = max(schedule.block("m") for schedule in MEASURED)


class StreamPolicy(Policy):
    """Scheduling policy of streams with matmuls on a GPU: picks the block sizes of m (rows) and k
    (the streamed axis); e (columns of states) is never split.
    """

    def __init__(self, stream: Node, shape: StreamShape, gpu: Gpu) -> None:
        self.stream, self.shape, self.gpu = stream, shape, gpu
        self.states = stream.blocks[0]
        self.dots = contractions(self.states.nodes)
        self.sums = contractions(self.states.results)
        self.extent = static(streamed_extent(stream))
        self.widest = max(
            (max(MATRIX, power_of_two(shape.extents[m])) for m in shape.lanes if self._is_real(m)),
            default=0,
        )
        # sums may take half of the registers, as in matmuls, in blocks with the rows of fast tiles;
        # with fewer rows, separate matmuls are faster
        if TALLEST * self.widest > gpu.tile_registers:
            what = f"{TALLEST} rows of {self.widest} columns of sums"
            raise CannotTile(f"{what} take more than half of {gpu.registers} registers")
        held = {shape.row, *shape.lanes}
        many = prod(extent for iter_var, extent in shape.extents.items() if iter_var not in held)
        whole = "" if shape.is_split else "a result has it"
        self.domain = Domain(
            (
                Axis("b", many, "parallel"),
                Axis("m", shape.rows, "parallel"),
                Axis("e", self.widest, "parallel"),
                Axis("k", self.extent, "stream", whole),
            )
        )
        self.rules = Rules(
            {"parallel": ("grid",), "stream": ("serial",)},
            axes={"e": ()},
            units={"m": MATRIX, "k": MATRIX},
            most={"b": 1},
            ordered=True,
        )

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        own = self.complete(Schedule())
        others = (s for s in MEASURED if s != own and not self.why_illegal(s))
        return [(s, None) for s in (own, *others)]

    def misfits(self) -> Sequence[Schedule]:
        return [s for s in MEASURED if self.why_illegal(s)]

    def complete(self, given: Schedule) -> Schedule:
        if given.instead:
            return given
        made = given.filled(_schedule(*extents(self.stream, self.gpu)))
        rows, step = made.block("m"), made.block("k")
        height = min(rows, max(MATRIX, power_of_two(self.shape.rows))) if self.shape.rows > 1 else 1
        parts = 2 if any(map(in_parts, self.dots)) else 1
        big = (rows >= 128 and step >= 128) or (
            parts * len(self.sums) * self.widest * rows > 128 * 128
        )
        # fewer stages fit if sums are wide
        stages = 2 if self.widest > 64 and parts * step > 32 and height > 64 else 3
        if len(self.dots) > 2 and (self.widest > 64 or len(self.sums) > 1):
            stages = 2
        if any(p.dtype.bits == 8 for p in tables(self.stream)):
            stages = 2  # a mask of bytes waits in shared memory, too
        # if one dot reads the result of another, Triton 3.6 miscompiles fewer rows of a warp
        warps = min(made.warps or (8 if big else 4), max(4, height // MATRIX))
        return replace(made, warps=warps, stages=made.stages or stages)

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        found = [Need("threads", schedule.warps * WARP, self.gpu.threads)]
        if schedule == self.complete(Schedule()):
            return found  # the default is not checked here: the compiler reports if it does not fit
        rows, step = schedule.block("m"), schedule.block("k")
        sums = rows * (len(self.sums) * self.widest + step)
        read = {a for d in self.dots for a in d.args if is_in_memory(a) and self._is_streamed(a)}
        bytes_ = sum(step * self._width(a) * a.dtype.bytes for a in read)
        return [
            *found,
            Need("bytes of shared memory", schedule.stages * bytes_, self.gpu.operand_bytes),
            Need("registers for sums and scores", sums, self.gpu.registers),
        ]

    def _is_real(self, iter_var: str) -> bool:
        return self.shape.extents[iter_var] > 1

    def _is_streamed(self, operand: Node) -> bool:
        return self.extent in operand.shape[-2:]

    def _width(self, operand: Node) -> int:
        """Returns how many elements an operand has for each position of the streamed axis."""
        sizes = [power_of_two(static(s)) for s in operand.shape[-2:]]
        return prod(sizes) // power_of_two(self.extent)
