"""Elementwise work and reductions along rows or columns on a GPU.

The parallel axes are tiled, and the tiles are distributed over programs. A reduction axis is in
the tile if it fits. Otherwise a program loops over blocks of it, accumulates a tile of partial
sums, and reduces the tile after the loop.

    y[i] = sum over r of x[i, r]      64 rows of 1000      split r 1024; vectorize r.1; bind i grid
    y[j] = sum over r of x[r, j]      4096 rows of 1024    split j 128; split r 32; vectorize j.1;
                                      vectorize r.1; rfactor r.0; pipeline r.0 3; bind j.0 grid
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from stack.ir.axes import parse_rule
from stack.ir.node import Node, topological
from stack.ir.traits import (
    divides,
    is_number,
    is_reduction,
)
from stack.ir.warp_ops import WARP
from stack.passes.nest.emit import axis_names
from stack.passes.nest.scope import letter
from stack.passes.policies.reduction_loops import (
    ACROSS,
    ONCE,
    busy,
    held_tiles,
    warps_of,
    why_ahead,
)
from stack.passes.policies.row_space import RowSpace
from stack.passes.policies.step_lowering import LoweredKernel, StepLowering
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import (
    Bind,
    ComputeWith,
    Evict,
    Fuse,
    Hold,
    Launch,
    Pipeline,
    Rewrite,
    Rfactor,
    Step,
    Vectorize,
)
from stack.passes.steps.primitives import (
    Split as Cut,
)
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.schedule import (
    Axis,
    Domain,
    Need,
    Policy,
    Prediction,
    Rules,
    Schedule,
    Split,
)
from stack.target import Gpu

REDUCED = "r"  # the name of all reduction axes together


class RowPolicy(Policy):
    """Scheduling policy of elementwise groups and reductions on a GPU: picks the block sizes of the
    parallel axes i, j, ... and of the reduction axis r.

    The reduction axis is in the tile (`lane`), or a serial loop over blocks of it (`serial`).
    """

    def __init__(self, space: RowSpace, gpu: Gpu) -> None:
        self.space, self.gpu = space, gpu
        shape = space.shape
        can_walk = space.is_one and (len(space.reduced) == 1 or space.is_column)
        if not (self._fits() or can_walk):
            raise CannotTile("several long axes are reduced at once")
        axes = [Axis(letter(a), shape[a], "parallel") for a in space.kept]
        if space.reduced:
            axes.append(Axis(REDUCED, prod(shape[a] for a in space.reduced), "reduction"))
        self.domain = Domain(tuple(axes))
        self.rules = Rules(
            {"parallel": ("grid",), "reduction": ("serial", "lane") if can_walk else ("lane",)},
            ordered=True,
        )

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        return [(self.complete(Schedule()), None)]

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
        held = self._held(made)
        least = self._fewest_warps(held)
        return replace(made, warps=made.warps or warps_of(held, self.gpu, least))

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
        if not is_walked(schedule) and schedule.block(REDUCED) != self._whole():
            return f"axis {REDUCED}: a block in lanes has all {self._whole()} elements"
        if schedule.stages and not is_walked(schedule):
            return f"stages={schedule.stages}: there is no serial loop with loads to prefetch"
        return ""

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        return [
            Need("threads", schedule.warps * WARP, self.gpu.threads),
            Need("registers for a tile", self._held(schedule), self.gpu.registers),
        ]

    def _whole(self) -> int:
        """The number of elements of one program if all reduction axes are whole in its tile, with
        extents padded to powers of two.
        """
        return prod(power_of_two(self.space.shape[a]) for a in self.space.reduced)

    def _fits(self) -> bool:
        is_column = self.space.is_column and self.space.is_one
        most = self.gpu.rows.column_in_tile if is_column else self.gpu.tile_registers
        return self._whole() <= most

    def _held(self, schedule: Schedule) -> int:
        return prod(schedule.block(a.name, 1) for a in self.domain.axes)

    def _usual(self) -> Schedule:
        space, gpu, sizes = self.space, self.gpu, self.gpu.rows
        shape, kept = space.shape, space.kept
        whole, fits = self._whole(), self._fits()
        room = max(1, sizes.tile // (whole if space.reduced and fits else 1))
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
        for axis in space.order():
            cap = sizes.transposed_side if turned else room
            blocks[axis] = min(power_of_two(shape[axis]), room, max(cap, 1))
            room //= blocks[axis]
        splits = [Split(letter(a), blocks[a], "grid") for a in kept]
        if space.reduced:
            held = prod(blocks.values())
            step = max(1, space.reduction_loop.block // held)
            splits.append(Split(REDUCED, whole, "lane") if fits else Split(REDUCED, step, "serial"))
        return Schedule(tuple(splits))


def is_walked(schedule: Schedule) -> bool:
    """True if a schedule makes the reduction axis a serial loop over blocks, instead of a part of
    the tile.
    """
    return any(s.binding == "serial" for s in schedule.of(REDUCED))


def _is_of_rows(gather: Node) -> bool:
    """True if a gather reads contiguous rows: its last axis is not selected by an index."""
    axes = parse_rule(gather.attrs["rule"]).inputs[0]
    return bool(axes) and not axes[-1].mark


class RowSteps:
    """Translates a schedule of an elementwise group or a reduction into loop transformations.

    Args:
        space: the loop space of the group.
        schedule: a complete schedule.
        found: the axes of the plain nest, with their extents.
        gpu: the target.
    """

    def __init__(
        self, space: RowSpace, schedule: Schedule, found: Mapping[str, int], gpu: Gpu
    ) -> None:
        self.space, self.schedule, self.found, self.gpu = space, schedule, found, gpu
        names = axis_names(space.root, set(space.reduced))
        self.kept = {a: names[a] for a in space.kept if names[a]}
        self.reduced = {a: names[a] for a in space.reduced if names[a]}
        self.others = [n for n in found if n not in names]  # axes of reductions in other spaces

    def steps(self) -> list[Step]:
        """Returns the loop transformations that carry out the schedule, in order of application.

        They split, fuse and vectorize axes, prefetch operands, and distribute tiles over programs.
        """
        blocks = {a: self.schedule.block(letter(a), 1) for a in self.kept}
        held = prod(blocks.values())
        made: list[Step] = []
        walked: list[str] = []
        tiles = {a: name for a, name in self.kept.items() if blocks[a] > 1}
        made += [
            Cut(name, blocks[a]).because(
                f"a tile has {blocks[a]} of {self.found[name]} elements along {name}"
            )
            for a, name in tiles.items()
        ]
        if is_walked(self.schedule) and self.reduced:
            (first, name), *rest = self.reduced.items()
            made += [
                Fuse(name, other).because("adjacent reduction axes share one loop")
                for _, other in rest
            ]
            made.append(Cut(name, self._step(name)).because(self._why_walked(name)))
            tiles[first] = name
            walked.append(name)
        else:
            tiles |= self.reduced
            made += [
                Cut(name, _whole(self.found[name])).because(
                    f"a tile has all {self.found[name]} elements of the reduction"
                )
                for name in self.reduced.values()
            ]
        inner: list[str] = []
        for name in self.others:
            fits = _whole(self.found[name]) * held <= self.gpu.tile_registers
            step = _whole(self.found[name]) if fits else max(2, ONCE.block // held)
            made.append(Cut(name, step))
            inner.append(name)
            walked += [] if fits else [name]
        order = [*reversed(inner), *(tiles[a] for a in sorted(tiles, reverse=True))]
        made += [Vectorize(f"{name}.1") for name in order]
        made += self._walks(walked)
        made += self._programs(blocks)
        made += arithmetic(self.space.results) + evictions(self.space.results, self.gpu)
        return [*made, self._launch()]

    def _walks(self, walked: Sequence[str]) -> list[Step]:
        """Returns the steps for the serial loops over the reduction axes `walked`: fusion of loops,
        tiles of partial sums, prefetching.
        """
        made: list[Step] = []
        ahead = self.schedule.stages if is_walked(self.schedule) else 0
        for name in walked:
            count = -(-self._extent(name) // self._step(name))
            if count == 1:
                continue
            if self._has_mates():
                made.append(ComputeWith(f"{name}.0").because("shared operands are loaded once"))
            if self._step(name) > 1:
                why = f"partial sums are reduced once, not {count} times"
                made.append(Rfactor(f"{name}.0").because(why))
            kept = self._kept(name)
            if kept:
                why = f"{kept} of {count} tiles stay in registers for the second loop"
                made.append(Hold(f"{name}.0", kept).because(why))
            if ahead and self._has_room(ahead):
                made.append(Pipeline(f"{name}.0", ahead).because(why_ahead(ahead)))
        return made

    def _why_walked(self, name: str) -> str:
        """Returns the reason, shown to users, for making a reduction axis a serial loop over
        blocks.
        """
        extent = self._extent(name)
        if self.space.is_column:
            return f"a column reduction of {extent} rows, {self._step(name)} at a time"
        return f"{extent} elements, and a tile has at most {self.gpu.tile_registers}"

    def _kept(self, name: str) -> int:
        """Returns how many tiles of a row stay in registers between two loops over it."""
        loop = self.space.reduction_loop
        if not loop.is_first or name not in self.reduced.values():
            return 0
        running = sum(is_reduction(n) for n in topological(self.space.results))
        step = replace(loop, block=self._step(name), warps=self.schedule.warps)
        return held_tiles(step, self._extent(name), self.space.inputs, running, self.gpu)

    def _has_mates(self) -> bool:
        """True if there are two reductions over the reduction axes that do not depend on each
        other, so that one loop can compute both."""
        body = topological(self.space.results)
        own = [n for n in body if is_reduction(n) and tuple(n.attrs["axes"]) == self.space.reduced]
        behind = {n: set(topological([n.args[0]])) for n in own}
        return any(
            a is not b and a not in behind[b] and b not in behind[a] for a in own for b in own
        )

    def _extent(self, name: str) -> int:
        """The extent of an axis; of the first reduction axis, that of the collapsed axes."""
        own = list(self.reduced.values())
        return prod(self.found[n] for n in own) if own[:1] == [name] else self.found[name]

    def _step(self, name: str) -> int:
        """The block size of a reduction axis with a serial loop."""
        step = self.schedule.block(REDUCED) if name in self.reduced.values() else ONCE.block
        return min(step, _whole(self._extent(name)))

    def _has_room(self, ahead: int) -> bool:
        """True if shared memory has room for the tiles that a column reduction prefetches `ahead`
        iterations early.
        """
        if self.space.reduction_loop != ACROSS:
            return True
        room = self.gpu.rows.prefetch_share * self.gpu.shared_bytes
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

    def _programs(self, blocks: Mapping[int, int]) -> list[Step]:
        made: list[Step] = []
        for axis, name in self.kept.items():
            if blocks[axis] == 1:
                made.append(Bind(name, "grid").because(f"{self.found[name]} programs"))
            elif blocks[axis] < self.found[name]:
                count = -(-self.found[name] // blocks[axis])
                made.append(Bind(f"{name}.0", "grid").because(f"{count} programs"))
        return made

    def _launch(self) -> Step:
        held = prod(s.block for s in self.schedule.splits)
        return Launch(self.schedule.warps).because(f"a tile has {held} elements")


def arithmetic(results: Sequence[Node]) -> list[Step]:
    """Returns the step that replaces divisions by constants with multiplications; empty if the
    results need no such division.
    """
    if any(divides(n) and is_number(n.args[1]) for n in topological(results)):
        return [Rewrite("reciprocals").because("multiplication is cheaper than division")]
    return []


def evictions(results: Sequence[Node], gpu: Gpu) -> list[Step]:
    """Returns the steps that add cache eviction hints to the stores of results which do not fit in
    the cache.
    """
    made: list[Step] = []
    for i, result in enumerate(results):
        size = static(result.tensor.bytes)
        if size > gpu.cache_bytes:
            why = f"{size >> 20} MiB exceed the cache of {gpu.cache_bytes >> 20} MiB"
            made.append(Evict(f"o{i}", "first").because(why))
    return made


def _whole(extent: int) -> int:
    """The block size that covers an axis: a power of two, at least 2."""
    return max(2, power_of_two(extent))


class RowLowering(StepLowering[Gpu]):
    """Lowers an elementwise group or a reduction."""

    def check(self) -> None:
        """Raises CannotTile if no tile is possible, or if there is no plain loop nest."""
        self.policy()
        super().check()

    def policy(self) -> RowPolicy:
        """Returns the scheduling policy that picks the block sizes. Raises CannotTile if no tile is
        possible.
        """
        return RowPolicy(RowSpace.of(self.group), self.target)

    def take(self, made: LoweredKernel) -> None:
        """Applies the loop transformations for the schedule of the group, after the policy has
        chosen what the user did not.
        """
        policy = self.policy()
        schedule = policy.of(self.group)
        found = axes(made.kernel)
        made.take(*RowSteps(policy.space, schedule, found, self.target).steps())
