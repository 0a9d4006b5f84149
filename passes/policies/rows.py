"""Elementwise work and reductions along rows or columns on a GPU.

The parallel axes are tiled, and the tiles are distributed over programs. A reduction axis is in
the tile if it fits. Otherwise a program loops over blocks of it, accumulates a tile of partial
sums, and reduces the tile after the loop.

    y[i] = sum over r of x[i, r]      64 rows of 1000      split r 1024; vectorize r.1; bind i grid
    y[j] = sum over r of x[r, j]      4096 rows of 1024    split j 128; split r 32; vectorize j.1;
                                      vectorize r.1; rfactor r.0; pipeline r.0 3; bind j.0 grid
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from stack.ir.axes import parse_rule
from stack.ir.node import Node, topological
from stack.ir.traits import is_reduction
from stack.ir.warp_ops import WARP
from stack.passes.nest.emit import axis_names
from stack.passes.nest.scope import letter
from stack.passes.policies.gpu_steps import (
    arithmetic,
    evictions,
    programs,
    serial_loop,
    tile_needs,
    tiles,
)
from stack.passes.policies.reduction_loops import (
    ACROSS,
    ONCE,
    RAGGED,
    are_mates,
    busy,
    held_tiles,
    warps_of,
    well_filled,
    whole_column_run,
    widest,
)
from stack.passes.policies.row_space import RowSpace
from stack.passes.policies.step_lowering import StepLowering
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import Fuse, Launch, LoweredKernel, Step
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.schedule import Axis, AxisSplit, Domain, Need, Schedule
from stack.target import Gpu

REDUCED = "r"  # the name of all reduction axes together


class RowLowering(StepLowering[Gpu]):
    """Lowers an elementwise group or a reduction.

    A schedule has blocks of the parallel axes i, j, ... and of the reduction axis r. The reduction
    axis is in the tile (`lane`), or a serial loop over blocks of it (`serial`).
    """

    @cached_property
    def space(self) -> RowSpace:
        """The loop space of the group. Raises CannotTile if its results do not share one."""
        return RowSpace(self.group)

    @cached_property
    def domain(self) -> Domain:
        """The axes. Raises CannotTile if the group has no kernel."""
        space, shape = self.space, self.space.shape
        can_walk = space.is_one and (len(space.reduced) == 1 or space.is_column)
        if not (self._fits or can_walk):
            raise CannotTile("several long axes are reduced at once")
        found = [Axis(letter(a), shape[a], "parallel", ("grid",)) for a in space.kept]
        if space.reduced:
            extent = prod(shape[a] for a in space.reduced)
            bindings = ("serial", "lane") if can_walk else ("lane",)
            found.append(Axis(REDUCED, extent, "reduction", bindings))
        return Domain(tuple(found), ordered=True)

    # ---- what a schedule leaves open

    def complete(self, given: Schedule) -> Schedule:
        made = given.filled(self._usual())
        loop = self.space.reduction_loop
        if is_walked(made):
            own = made.warps or loop.warps, made.stages or loop.ahead
            return replace(made, warps=own[0], stages=own[1])
        held = prod(made.block(axis.name, 1) for axis in self.domain.axes)
        return replace(made, warps=made.warps or self._warps(held))

    @cached_property
    def _whole(self) -> int:
        """The elements of one program if all reduction axes are whole in its tile, with extents
        padded to powers of two.
        """
        return prod(power_of_two(self.space.shape[a]) for a in self.space.reduced)

    @property
    def _fits(self) -> bool:
        """True if a tile may have all elements of the reduction axes."""
        is_column, gpu = self.space.is_column and self.space.is_one, self.target
        return self._whole <= (gpu.rows.column_in_tile if is_column else gpu.tile_registers)

    @property
    def _has_whole_rows(self) -> bool:
        """True if a tile has all elements of the rows that are reduced."""
        return bool(self.space.reduced) and not self.space.is_column and self._fits

    @property
    def _run(self) -> int:
        """The columns of a warp if each thread has whole columns; else 0."""
        has_run = self.space.is_column and self.space.is_one and self._fits
        return whole_column_run(self._whole, self.space.columns, self.target) if has_run else 0

    def _warps(self, held: int) -> int:
        """Picks the warps for a tile of `held` elements that has all of the reduction axes."""
        if self._run:
            return max(1, held // (self._run * self._whole))
        sizes = self.target.rows
        has_rows = self._has_whole_rows and held > self._whole
        each = self._row_elements() if has_rows else sizes.warp_elements
        return warps_of(held, self.target, self._fewest_warps(held), each)

    def _fewest_warps(self, held: int) -> int:
        """Returns the warps with which the registers of a thread hold its elements of all arrays.

        `held`: the elements of a tile. With fewer warps, ptxas spills values to memory.
        """
        sizes = self.target.rows
        room = WARP * max(1, sizes.thread_registers - sizes.address_registers)
        registers = held * sum(array.dtype.bytes for array in self.space.arrays) // 4
        return power_of_two(max(1, -(-registers // room)))

    def why_illegal(self, schedule: Schedule) -> str:
        why = super().why_illegal(schedule)
        extent = self.domain.axis(REDUCED)
        if why or extent is None:
            return why
        if not is_walked(schedule) and schedule.block(REDUCED) != self._whole:
            return f"axis {REDUCED}: a block in lanes has all {self._whole} elements"
        if schedule.stages and not is_walked(schedule):
            return f"stages={schedule.stages}: there is no serial loop with loads to prefetch"
        return ""

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        return tile_needs(schedule, self.target)

    def _row_elements(self) -> int:
        """The elements of a tile of several whole rows, and of each of its warps."""
        sizes, size = self.target.rows, prod(self.space.shape)
        is_written = any(prod(map(static, r.shape)) >= size for r in self.space.results)
        return sizes.written_row_elements if is_written else sizes.row_elements

    def _usual(self) -> Schedule:
        space, gpu, sizes = self.space, self.target, self.target.rows
        shape, kept = space.shape, space.kept
        whole, fits = self._whole, self._fits
        tile = sizes.tile
        if self._has_whole_rows:
            tile = max(tile, self._row_elements() * 4 // max(4, widest(space.inputs)))
            tile = busy(tile, prod(shape), sizes.tile, gpu)
        room = max(1, tile // (whole if space.reduced and fits else 1), self._run)
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
        splits = [AxisSplit(letter(a), blocks[a], "grid") for a in kept]
        if space.reduced:
            held = prod(blocks.values())
            step = max(1, self._walked_block() // held)
            splits.append(
                AxisSplit(REDUCED, whole, "lane") if fits else AxisSplit(REDUCED, step, "serial")
            )
        return Schedule(tuple(splits))

    def _walked_block(self) -> int:
        """Picks the elements of a tile if the reduction axis is a serial loop over blocks."""
        loop = self.space.reduction_loop
        if loop not in (ACROSS, RAGGED):
            return loop.block
        inputs = self.space.inputs  # of one axis: rows side by side, if there are no others
        arrays = [s for s in inputs if s.tensor.rank > 1] or inputs
        bytes_ = sum(s.dtype.bytes for s in arrays)
        return max(loop.block, self.target.rows.column_bytes // max(1, bytes_))

    # ---- steps

    def take(self, made: LoweredKernel) -> None:
        space, schedule, extents = self.space, self.schedule, dict(axes(made.kernel))
        names = axis_names(space.root, space.reduced)
        kept = [names[a] for a in space.kept if names[a]]
        reduced = [names[a] for a in space.reduced if names[a]]
        inner = [n for n in extents if n not in names]  # of reductions in other spaces
        blocks = {n: block for n in kept if (block := schedule.block(n, 1)) > 1}
        held = prod(blocks.values())
        if is_walked(schedule) and reduced:
            first, *others = reduced
            why = "adjacent reduction axes share one loop"
            made.take(*(Fuse(first, other).because(why) for other in others))
            extents[first] = prod(extents[n] for n in reduced)
            blocks[first] = min(schedule.block(REDUCED), _padded(extents[first]))
        else:
            blocks |= {n: _padded(extents[n]) for n in reduced}
        for name in inner:
            whole = _padded(extents[name])
            fits = whole * held <= self.target.tile_registers
            blocks[name] = whole if fits else max(2, ONCE.block // held)
        steps = tiles({n: blocks[n] for n in (*names, *inner) if n in blocks}, extents)
        for name in (*reduced[:1], *inner):
            steps += self._walk(name, extents[name], blocks[name], name in reduced)
        steps += programs(extents, {n: blocks.get(n, 1) for n in kept})
        steps += arithmetic(space.results) + evictions(space.results, self.target)
        held = prod(s.block for s in schedule.splits)
        made.take(*steps, Launch(schedule.warps).because(f"a tile has {held} elements"))

    def _walk(self, name: str, extent: int, block: int, is_own: bool) -> list[Step]:
        """Returns the steps for the serial loop over the blocks of a reduction axis; none for one
        block. `is_own`: the axis is one of the loop space.
        """
        count = -(-extent // block)
        if count == 1:
            return []
        ahead = self.schedule.stages if is_walked(self.schedule) else 0
        return serial_loop(
            f"{name}.0",
            count,
            is_shared=self._has_mates(),
            has_sums=block > 1,
            kept=self._kept(block, extent) if is_own else 0,
            ahead=ahead if self._has_room(ahead) else 0,
        )

    def _kept(self, block: int, extent: int) -> int:
        """Returns how many tiles of a row stay in registers between two loops over it."""
        space = self.space
        if not space.reduction_loop.is_first:
            return 0
        running = sum(is_reduction(n) for n in topological(space.results))
        warps = self.schedule.warps
        return held_tiles(block, warps, extent, space.inputs, running, self.target)

    def _has_mates(self) -> bool:
        """True if there are two reductions over the reduction axes that do not depend on each
        other, so that one loop can compute both."""
        body = topological(self.space.results)
        own = [n for n in body if is_reduction(n) and tuple(n.attrs["axes"]) == self.space.reduced]
        return are_mates(own)

    def _has_room(self, ahead: int) -> bool:
        """True if shared memory has room for the tiles that a column reduction prefetches `ahead`
        iterations early.
        """
        if self.space.reduction_loop != ACROSS:
            return True
        room = self.target.rows.prefetch_share * self.target.shared_bytes
        return ahead * sum(map(self._loaded, self.space.inputs)) <= room

    def _loaded(self, array: Node) -> int:
        """Returns how many bytes of an array one iteration of the reduction loop loads as a tile; 0
        if none.
        """
        place = self.space.places.get(array, ())
        axes = [a for a, variable in enumerate(self.space.iter_vars) if variable in place]
        names = {REDUCED if a in self.space.reduced else letter(a) for a in axes}
        size = prod(self.schedule.block(name, 1) for name in names)
        return size * array.dtype.bytes if size > 1 else 0


def is_walked(schedule: Schedule) -> bool:
    """True if a schedule makes the reduction axis a serial loop over blocks, instead of a part of
    the tile.
    """
    return any(s.binding == "serial" for s in schedule.of(REDUCED))


def _is_of_rows(gather: Node) -> bool:
    """True if a gather reads contiguous rows: its last axis is not selected by an index."""
    axes = parse_rule(gather.attrs["rule"]).inputs[0]
    return bool(axes) and not axes[-1].mark


def _padded(extent: int) -> int:
    """The block size that covers an axis: a power of two, at least 2."""
    return max(2, power_of_two(extent))
