"""Scheduling policy of matmuls on a GPU: legal schedules with their predicted times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from stack.ir.types import DType
from stack.ir.warp_ops import MATRIX, WARP
from stack.passes.gpu_products.tile_choice import (
    LIBRARY,
    Product,
    Tile,
    predicted,
    ranked,
    tiles_of,
)
from stack.passes.tiling.contraction import product_domain
from stack.schedule import Need, Policy, Prediction, Rules, Schedule
from stack.target import Gpu


class ProductPolicy(Policy):
    """Schedules matmuls in blocks of the axes m (rows), n (columns), k (depth) and b (batch).

    Args:
        product: the extents of the matmul, and its epilogue.
        dtype: the type of its operands.
        gpu: the target.
        others: predicted seconds of alternatives to a kernel, by the word that selects them.
        has_threads: whether a schedule may bind axes to threads. The last, partial wave then has
            no smaller blocks.
    """

    def __init__(
        self,
        product: Product,
        dtype: DType,
        gpu: Gpu,
        others: Mapping[str, float] | None = None,
        has_threads: bool = False,
    ) -> None:
        self.product, self.dtype, self.gpu = product, dtype, gpu
        self.others = others or {}
        is_tall = product.height > 1
        self.domain = product_domain(product.batch, product.height, product.width, product.depth)
        self.rules = Rules(
            {
                "parallel": ("grid", "lane", "unroll") if has_threads and is_tall else ("grid",),
                "reduction": ("serial",),
            },
            units=dict.fromkeys("mnk", MATRIX) if is_tall else {},
            most={"b": 1},
            options=("warps", "stages", "persistent"),
            words=tuple(self.others),
            tails=not has_threads,
        )

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        found = {
            self._limited(tile.schedule): predicted(tile, self.product, self.dtype, self.gpu)
            for tile in self._ranked()
        }
        found |= {Schedule(instead=w): Prediction(s) for w, s in self.others.items()}
        # a library must be faster by a margin
        margin = {LIBRARY: 1 / self.gpu.matmuls.library_gain}
        best = sorted(found, key=lambda s: found[s].seconds * margin.get(s.instead, 1))
        return [(schedule, found[schedule]) for schedule in best]

    def misfits(self) -> Sequence[Schedule]:
        tiles = tiles_of(self.product, self.dtype, self.gpu)
        return [t.schedule for t in tiles if self.why_illegal(t.schedule)]

    def complete(self, given: Schedule) -> Schedule:
        if given.instead:
            return given
        best = self._ranked()[0].schedule
        if given.is_by_threads:
            return self._by_threads(given, best)
        made = given.filled(replace(best, warps=0, stages=0))
        if all(made.block(axis) == best.block(axis) for axis in "mn"):
            warps, stages = best.warps, best.stages
        else:
            sums = made.block("m", 1) * made.block("n") * self.product.gemms
            warps = 8 if sums >= self.gpu.tile_registers else 4
            stages = self.gpu.matmuls.stages
        made = replace(made, warps=made.warps or warps)
        return made if made.stages else self._limited(replace(made, stages=stages))

    def _by_threads(self, given: Schedule, best: Schedule) -> Schedule:
        """Completes the user's partial schedule `given` for multiply-adds of threads, with values
        of `best`. If it has no block of k, threads load operands from global memory directly.
        """
        usual = [s for s in best.splits if s.axis != "k" or given.of("k")]
        made = given.filled(Schedule(tuple(usual), stages=1))
        return replace(made, warps=made.warps or max(1, self._threads(made) // WARP))

    def _threads(self, schedule: Schedule) -> int:
        """Returns the number of threads of a program; each thread computes several sums if the
        block has more sums than a program may have threads.
        """
        own = schedule.bound("unroll")
        threads = schedule.block("m") * schedule.block("n") // prod(s.block for s in own)
        return threads if own else min(threads, self.gpu.threads)

    def why_illegal(self, schedule: Schedule) -> str:
        found = super().why_illegal(schedule)
        return found or (self._why_not_by_threads(schedule) if schedule.is_by_threads else "")

    def _why_not_by_threads(self, schedule: Schedule) -> str:
        lanes, own = schedule.bound("lane"), schedule.bound("unroll")
        if lanes and (own or lanes[1:]):
            return f"{(*lanes, *own)[1]}: lanes have one sum each, along axis {lanes[0].axis} only"
        for split in lanes:
            block = schedule.block(split.axis)
            if split.block != 1:
                return f"axis {split.axis}: {split}, but a lane has 1 element"
            if block % WARP:
                return f"axis {split.axis}: a block of {block} is no multiple of {WARP} lanes"
        threads = self._threads(schedule)
        if own and threads != schedule.warps * WARP:
            each = prod(s.block for s in own)
            sums = f"{schedule.block('m')} x {schedule.block('n')} sums"
            return f"warps={schedule.warps}: {sums} need {threads / WARP:g} warps, {each} a thread"
        return ""

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        tile = self._tile(schedule)
        step = tile.step_bytes(self.dtype.bytes)
        found = [
            Need("threads", tile.warps * WARP, self.gpu.threads),
            Need("bytes of shared memory", tile.stages * step, self.gpu.operand_bytes),
        ]
        if tile.rows > 1:
            sums = tile.sums(self.dtype)
            found.append(Need("registers for sums", sums, self.gpu.tile_registers))
        return found

    def _ranked(self) -> list[Tile]:
        found = ranked(self.product, self.dtype, self.gpu)
        return [tile for tile in found if self.rules.tails or not tile.last]

    def _limited(self, schedule: Schedule) -> Schedule:
        """Limits the stages of a schedule to what fits in shared memory, at least one."""
        room = self.gpu.operand_bytes // max(1, self._tile(schedule).step_bytes(self.dtype.bytes))
        return replace(schedule, stages=max(1, min(schedule.stages, room)))

    def _tile(self, schedule: Schedule) -> Tile:
        return replace(Tile.of(schedule), products=self.product.gemms)
