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
from functools import cached_property
from math import prod

from stack.ir.node import Node, topological
from stack.ir.traits import divides, is_number, is_reduction
from stack.passes.nest.emit import axis_names
from stack.passes.nest.scope import letter
from stack.passes.policies.reduction_loops import ACROSS, ONCE, are_mates, held_tiles, why_ahead
from stack.passes.policies.row_policy import REDUCED, RowPolicy, is_walked
from stack.passes.policies.row_space import RowSpace
from stack.passes.policies.step_lowering import StepLowering
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import (
    Bind,
    ComputeWith,
    Evict,
    Fuse,
    Hold,
    Launch,
    LoweredKernel,
    Pipeline,
    Rewrite,
    Rfactor,
    Split,
    Step,
    Vectorize,
)
from stack.passes.tiling.frame import power_of_two, static
from stack.target import Gpu


class RowLowering(StepLowering[Gpu]):
    """Lowers an elementwise group or a reduction."""

    def policy(self) -> RowPolicy:
        return RowPolicy(self.space, self.target)

    @cached_property
    def space(self) -> RowSpace:
        """The loop space of the group."""
        return RowSpace.of(self.group)

    @cached_property
    def found(self) -> Mapping[str, int]:
        """The axes of the plain nest, with their extents."""
        return axes(self.nest)

    @cached_property
    def reduced(self) -> dict[int, str]:
        """The loops over the reduction axes, by their number."""
        return self._loops(self.space.reduced)

    def _loops(self, own: Sequence[int]) -> dict[int, str]:
        names = axis_names(self.space.root, set(self.space.reduced))
        return {axis: names[axis] for axis in own if names[axis]}

    def take(self, made: LoweredKernel) -> None:
        kept = self._loops(self.space.kept)
        blocks = {a: self.schedule.block(letter(a), 1) for a in kept}
        held = prod(blocks.values())
        steps: list[Step] = []
        walked: list[str] = []
        tiles = {a: name for a, name in kept.items() if blocks[a] > 1}
        steps += [
            Split(name, blocks[a]).because(
                f"a tile has {blocks[a]} of {self.found[name]} elements along {name}"
            )
            for a, name in tiles.items()
        ]
        if is_walked(self.schedule) and self.reduced:
            (first, name), *rest = self.reduced.items()
            steps += [
                Fuse(name, other).because("adjacent reduction axes share one loop")
                for _, other in rest
            ]
            steps.append(Split(name, self._step(name)).because(self._why_walked(name)))
            tiles[first] = name
            walked.append(name)
        else:
            tiles |= self.reduced
            steps += [
                Split(name, _whole(self.found[name])).because(
                    f"a tile has all {self.found[name]} elements of the reduction"
                )
                for name in self.reduced.values()
            ]
        inner: list[str] = []
        own = {*kept.values(), *self.reduced.values()}
        for name in (n for n in self.found if n not in own):  # of reductions in other spaces
            fits = _whole(self.found[name]) * held <= self.target.tile_registers
            step = _whole(self.found[name]) if fits else max(2, ONCE.block // held)
            steps.append(Split(name, step))
            inner.append(name)
            walked += [] if fits else [name]
        order = [*reversed(inner), *(tiles[a] for a in sorted(tiles, reverse=True))]
        steps += [Vectorize(f"{name}.1") for name in order]
        steps += self._walks(walked)
        steps += programs(self.found, {name: blocks[a] for a, name in kept.items()})
        steps += arithmetic(self.space.results) + evictions(self.space.results, self.target)
        held = prod(s.block for s in self.schedule.splits)
        launch = Launch(self.schedule.warps).because(f"a tile has {held} elements")
        made.take(*steps, launch)

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
        return f"{extent} elements, and a tile has at most {self.target.tile_registers}"

    def _kept(self, name: str) -> int:
        """Returns how many tiles of a row stay in registers between two loops over it."""
        loop = self.space.reduction_loop
        if not loop.is_first or name not in self.reduced.values():
            return 0
        running = sum(is_reduction(n) for n in topological(self.space.results))
        tile = self._step(name), self.schedule.warps
        return held_tiles(*tile, self._extent(name), self.space.inputs, running, self.target)

    def _has_mates(self) -> bool:
        """True if there are two reductions over the reduction axes that do not depend on each
        other, so that one loop can compute both."""
        body = topological(self.space.results)
        own = [n for n in body if is_reduction(n) and tuple(n.attrs["axes"]) == self.space.reduced]
        return are_mates(own)

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


def programs(extents: Mapping[str, int], blocks: Mapping[str, int]) -> list[Step]:
    """Returns the steps that distribute blocks of a size along each axis over programs, if an axis
    has several.
    """
    counts = {name: -(-extents[name] // block) for name, block in blocks.items()}
    return [
        Bind(name if blocks[name] == 1 else f"{name}.0", "grid").because(f"{count} programs")
        for name, count in counts.items()
        if count > 1
    ]


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
