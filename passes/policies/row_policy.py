"""Scheduling policy of elementwise groups and reductions on a GPU: tiles, warps, prefetching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.warp_ops import WARP
from stack.passes.nest.scope import letter
from stack.passes.policies.reduction_loops import (
    ACROSS,
    busy,
    warps_of,
    well_filled,
    whole_column_run,
    widest,
)
from stack.passes.policies.row_space import RowSpace
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.schedule import Axis, Domain, Need, Policy, Rules, Schedule, Split
from stack.target import Gpu

REDUCED = "r"  # the name of all reduction axes together


class RowPolicy(Policy):
    """Scheduling policy of elementwise groups and reductions on a GPU: picks the block sizes of the
    parallel axes i, j, ... and of the reduction axis r.

    The reduction axis is in the tile (`lane`), or a serial loop over blocks of it (`serial`).

    Attributes:
        whole: the elements of one program if all reduction axes are whole in its tile, with extents
            padded to powers of two.
        fits: whether a tile may have all of them.
        has_whole_rows: whether a tile has all elements of the rows that are reduced.
        run: the columns of a warp if each thread has whole columns; else 0.
    """

    def __init__(self, space: RowSpace, gpu: Gpu) -> None:
        self.space, self.gpu = space, gpu
        shape, is_column = space.shape, space.is_column and space.is_one
        self.whole = prod(power_of_two(shape[a]) for a in space.reduced)
        self.fits = self.whole <= (gpu.rows.column_in_tile if is_column else gpu.tile_registers)
        self.has_whole_rows = bool(space.reduced) and not space.is_column and self.fits
        has_run = is_column and self.fits
        self.run = whole_column_run(self.whole, space.inputs, gpu) if has_run else 0
        can_walk = space.is_one and (len(space.reduced) == 1 or space.is_column)
        if not (self.fits or can_walk):
            raise CannotTile("several long axes are reduced at once")
        axes = [Axis(letter(a), shape[a], "parallel") for a in space.kept]
        if space.reduced:
            axes.append(Axis(REDUCED, prod(shape[a] for a in space.reduced), "reduction"))
        self.domain = Domain(tuple(axes))
        self.rules = Rules(
            {"parallel": ("grid",), "reduction": ("serial", "lane") if can_walk else ("lane",)},
            ordered=True,
        )

    def complete(self, given: Schedule) -> Schedule:
        usual = self._usual()
        made = given.filled(usual)
        if is_walked(made):
            reduction_loop = self.space.reduction_loop
            return replace(
                made,
                warps=made.warps or reduction_loop.warps,
                stages=made.stages or reduction_loop.ahead,
            )
        return replace(made, warps=made.warps or self._warps(self._held(made)))

    def _warps(self, held: int) -> int:
        """Picks the warps for a tile of `held` elements that has all of the reduction axes."""
        if self.run:
            return max(1, held // (self.run * self.whole))
        sizes = self.gpu.rows
        has_rows = self.has_whole_rows and held > self.whole
        each = self._row_elements() if has_rows else sizes.warp_elements
        return warps_of(held, self.gpu, self._fewest_warps(held), each)

    def _fewest_warps(self, held: int) -> int:
        """Returns the warps with which the registers of a thread hold its elements of all arrays.

        `held`: the elements of a tile. With fewer warps, ptxas spills values to memory.
        """
        sizes = self.gpu.rows
        room = max(1, sizes.thread_registers - sizes.address_registers)
        return power_of_two(-(-held * len(self.space.arrays) // (WARP * room)))

    def why_illegal(self, schedule: Schedule) -> str:
        why = super().why_illegal(schedule)
        extent = self.domain.axis(REDUCED)
        if why or extent is None:
            return why
        if not is_walked(schedule) and schedule.block(REDUCED) != self.whole:
            return f"axis {REDUCED}: a block in lanes has all {self.whole} elements"
        if schedule.stages and not is_walked(schedule):
            return f"stages={schedule.stages}: there is no serial loop with loads to prefetch"
        return ""

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        return [
            Need("threads", schedule.warps * WARP, self.gpu.threads),
            Need("registers for a tile", self._held(schedule), self.gpu.registers),
        ]

    def _row_elements(self) -> int:
        """The elements of a tile of several whole rows, and of each of its warps."""
        sizes, size = self.gpu.rows, prod(self.space.shape)
        is_written = any(prod(map(static, r.shape)) >= size for r in self.space.results)
        return sizes.written_row_elements if is_written else sizes.row_elements

    def _held(self, schedule: Schedule) -> int:
        return prod(schedule.block(a.name, 1) for a in self.domain.axes)

    def _usual(self) -> Schedule:
        space, gpu, sizes = self.space, self.gpu, self.gpu.rows
        shape, kept = space.shape, space.kept
        whole, fits = self.whole, self.fits
        tile = sizes.tile
        if self.has_whole_rows:
            tile = max(tile, self._row_elements() * 4 // max(4, widest(space.inputs)))
            tile = busy(tile, prod(shape), sizes.tile, gpu)
        room = max(1, tile // (whole if space.reduced and fits else 1), self.run)
        turned = not (space.reduced or space.picks) and space.is_turned()
        if not space.reduced and space.picks:
            # gathers have a long latency
            is_of_rows = all(map(_is_of_rows, space.picks))
            room = sizes.gathered_tile if is_of_rows else sizes.tile
            room = busy(room, prod(shape), 128, gpu)
        elif space.reduced and not fits:
            kept_size = prod(shape[a] for a in kept)
            room = busy(sizes.columns, kept_size, 32, gpu) if space.is_column else 1
        elif turned:
            room = busy(sizes.transposed_side**2, prod(shape), sizes.tile, gpu)
        blocks: dict[int, int] = {}
        if space.reduced and space.is_column and not fits:
            room = well_filled(room, shape[kept[-1]])
        for axis in space.order():
            cap = sizes.transposed_side if turned else room
            blocks[axis] = min(power_of_two(shape[axis]), room, max(cap, 1))
            room //= blocks[axis]
        splits = [Split(letter(a), blocks[a], "grid") for a in kept]
        if space.reduced:
            held = prod(blocks.values())
            step = max(1, self._walked_block() // held)
            splits.append(Split(REDUCED, whole, "lane") if fits else Split(REDUCED, step, "serial"))
        return Schedule(tuple(splits))

    def _walked_block(self) -> int:
        """Picks the elements of a tile if the reduction axis is a serial loop over blocks."""
        loop = self.space.reduction_loop
        if loop != ACROSS:
            return loop.block
        inputs = self.space.inputs  # of one axis: rows side by side, if there are no others
        arrays = [s for s in inputs if s.tensor.rank > 1] or inputs
        bytes_ = sum(s.dtype.bytes for s in arrays)
        return max(loop.block, self.gpu.rows.column_bytes // max(1, bytes_))


def is_walked(schedule: Schedule) -> bool:
    """True if a schedule makes the reduction axis a serial loop over blocks, instead of a part of
    the tile.
    """
    return any(s.binding == "serial" for s in schedule.of(REDUCED))


def _is_of_rows(gather: Node) -> bool:
    """True if a gather reads contiguous rows: its last axis is not selected by an index."""
    axes = parse_rule(gather.attrs["rule"]).inputs[0]
    return bool(axes) and not axes[-1].mark
