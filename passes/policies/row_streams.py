"""Streams without matrix products: softmax, norms and statistics of long rows.

On a GPU, a program loops over blocks of a row, and keeps the states in registers. A result as long
as the row needs a second loop.

    softmax of rows of 65536, f32:
    split r 16384; block r.1; vectorize r.1; rfactor r.0; pipeline r.0 3; bind i grid; launch 32

Two kinds of rows are faster in another order:

- Rows that fit in registers: `block r` first, so that each state is one pass over the row, and no
  state is rescaled; `hold` keeps the tiles between the passes.
- States that are cheap to rescale, as a running mean and variance, or the position of a maximum:
  `reorder r.0 r.1` gives each element of a block its own states, which are merged once, after the
  loop. `peel r.0 1` leaves the mask of a partial block to the last iteration.

If memory is contiguous along another axis than the row, a program has a block of columns:

    variance of columns of 65536, f32:
    split i 128; split r 32; reorder r.0 r.1; block r.1; vectorize r.1; vectorize i.1; bind i.0 grid

On a CPU, a row is one pass over memory, in vectors along the row:

    softmax of rows of 100,000 numbers:
    rewrite powers; split r 1024 tail=peel; block r.1; split r.1 64 tail=peel; vectorize r.1.1;
    rfactor r.1.0; bind i cores

A part of a row stays in the first-level cache while each state is computed for it. Lanes keep
partial sums of the part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from stack.ir.node import Block, Node, topological
from stack.ir.node import walk as walk_nodes
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import is_load, signs
from stack.ir.warp_ops import WARP
from stack.passes.nest.online import STREAMED
from stack.passes.policies.gpu_steps import arithmetic, evictions, programs, serial_loop, tile_needs
from stack.passes.policies.reduction_loops import (
    ONCE,
    PRIVATE,
    TWICE,
    WHOLE,
    ReductionLoop,
    busy,
    column_loop,
    held_tiles,
    holds_whole,
    is_ragged,
    position_loop,
)
from stack.passes.policies.step_lowering import StepLowering, split
from stack.passes.positions.streams import StreamShape, stream_index_maps, stream_shape
from stack.passes.steps.affine import index_of
from stack.passes.steps.loops import all_loops, axes, axis_of, nests, stores_only
from stack.passes.steps.online import is_online, scaled, states_of
from stack.passes.steps.primitives import (
    Bind,
    BlockStates,
    Evict,
    Launch,
    LoweredKernel,
    Peel,
    Reorder,
    Rewrite,
    Rfactor,
    Split,
    Unroll,
    Vectorize,
)
from stack.passes.tiling.frame import CannotTile, is_expensive, power_of_two, static
from stack.schedule import Axis, AxisSplit, Domain, Need, Schedule
from stack.target import Cpu, Gpu


class RowStreams(StepLowering[Gpu]):
    """Lowers a stream without matrix products."""

    @cached_property
    def shape(self) -> StreamShape:
        """The roles of the stream's axes. Raises CannotTile if they cannot be derived."""
        return stream_shape(stream_index_maps(*self.group.blocks), False)

    @cached_property
    def walk(self) -> Walk:
        """The description of the loop over a row in the stream's plain loop nest. Raises CannotTile
        if it has no such nest.
        """
        return Walk(self.nest)

    @property
    def extent(self) -> int:
        """The extent of the streamed axis."""
        return static(streamed_extent(self.group))

    @property
    def columns(self) -> int:
        """The extent of the axis along which memory is contiguous; 0 if it is the streamed one."""
        return self.walk.around.get(self.walk.column, 0)

    @cached_property
    def loop(self) -> ReductionLoop:
        """The default block size, warps and prefetch depth of the loop over a row.

        They depend on whether a second loop reads the row, and whether the row fits in registers.
        """
        walk, inputs = self.walk, self.group.blocks[0].params
        if walk.column:
            is_first = bool(self.shape.along)
            loop = column_loop(
                self.extent,
                self.columns,
                inputs,
                self.target,
                is_first=is_first,
                has_positions=walk.has_positions,
            )
            return replace(loop, is_first=is_first)
        if not self.shape.along:
            is_ragged_row = walk.has_positions and any(map(is_ragged, inputs))
            return (is_ragged_row and position_loop(self.extent, self.target)) or ONCE
        if walk.is_chain and holds_whole(self.extent, inputs, self.target):
            return WHOLE
        return PRIVATE if walk.is_private else TWICE

    @cached_property
    def domain(self) -> Domain:
        """The axes b (rows), k (the streamed one), and c, along which memory is contiguous, if k is
        not.
        """
        shape = self.shape
        rows = prod(e for iter_var, e in shape.extents.items() if iter_var != shape.along)
        whole = "" if shape.is_split else "a result has it"
        found = [Axis("b", rows, "parallel", ("grid",))]
        if self.columns:
            found = [Axis("b", rows // self.columns, "parallel")]
            found.append(Axis("c", self.columns, "columns", ("grid",)))
        return Domain((*found, Axis("k", self.extent, "stream", ("serial",), whole, unit=2)))

    def complete(self, given: Schedule) -> Schedule:
        loop = self.loop
        lanes = self._lanes(loop) if self.columns else loop.columns
        usual = [AxisSplit(self._beside, lanes, "grid")] if self.columns or lanes > 1 else []
        usual.append(AxisSplit("k", max(2, loop.block // lanes), "serial"))
        return given.filled(Schedule(tuple(usual), loop.warps, loop.ahead))

    @property
    def _beside(self) -> str:
        """The axis of the schedule that a tile has beside the streamed one."""
        return "c" if self.columns else "b"

    def _lanes(self, loop: ReductionLoop) -> int:
        """Picks the number of columns of a program. With more than one tile for each column, parts
        of the columns can fill the processors; see `stream_parts`.
        """
        lanes = min(power_of_two(self.columns), loop.columns)
        if loop.is_whole or not self.shape.is_split:
            programs = prod(a.extent for a in self.domain.axes if a.name != "k")
            lanes = busy(lanes, programs, WARP, self.target)
        return lanes

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        return tile_needs(schedule, self.target)

    def take(self, made: LoweredKernel) -> None:
        walk, loop, schedule = self.walk, self.loop, self.schedule
        block = max(2, min(power_of_two(walk.extent), schedule.block("k")))
        count = -(-walk.extent // block)
        beside, lanes = walk.column or walk.row, schedule.block(self._beside, 1)
        if lanes > 1:
            why = f"rows are short: a program has {lanes}"
            if walk.column:
                why = f"memory is contiguous along {beside}: a program has {lanes} columns"
            made.take(Split(beside, lanes).because(why))
        self._tiles(made, block)
        if count > 1:
            self._registers(made, block, count)
        if lanes > 1:
            made.take(Vectorize(f"{beside}.1"))
        if walk.is_private:
            self._updates(made)
        if count > 2 and walk.extent % block and not self._kept(block, count):
            peel = Peel(f"{STREAMED}.0", 1)
            made.take(peel.because("only the last iteration needs a mask"), Unroll(peel.last))
        if loop.is_unrolled and count > 1:
            made.take(Unroll(f"{STREAMED}.0").because("all loads start at once"))
        blocks = {name: lanes if name == beside else 1 for name in walk.around}
        made.take(*programs(walk.around, blocks))
        if loop.is_first and count > 1 and not loop.is_whole:
            for number, array in enumerate(self.group.blocks[0].params):
                if array.tensor.rank > 1 and static(array.shape[-1]) == self.extent:
                    why = "the cache keeps a row until the second loop"
                    made.take(Evict(f"p{number}", "reuse").because(why))
        results = self.group.blocks[2].results
        made.take(*arithmetic(results), *evictions(results, self.target))
        made.take(Launch(schedule.warps).because(f"a tile has {block * lanes} elements"))

    def _updates(self, made: LoweredKernel) -> None:
        """Rewrites the updates of states that each element of a block has."""
        if self.walk.is_corrected:
            why = "all elements have the same count: the number of the iteration"
            made.take(Rewrite("iteration_counts").because(why))
            why = "one element moves a mean by its distance from it, over the count"
            made.take(Rewrite("mean_shifts").because(why))
            made.take(Rewrite("inverses").because("a count is divided by once"))
            made.take(Rewrite("addends_first").because("a correction is small beside its sum"))
        if self.walk.has_positions:
            why = "positions grow from one iteration to the next"
            made.take(Rewrite("first_positions").because(why))

    def _tiles(self, made: LoweredKernel, block: int) -> None:
        """Splits the row into tiles and vectorizes them."""
        walk = self.walk
        is_whole = self.loop.is_whole and (block >= walk.extent or not walk.column)
        if is_whole and walk.is_online:
            why = "the row stays in registers: each state is one pass over it"
            made.take(BlockStates(STREAMED).because(why))
        why = f"a tile has {block} of {walk.extent} elements"
        made.take(Split(STREAMED, block).because(why))
        if walk.is_online and not is_whole:
            if walk.is_private and walk.extent > block:
                why = "each element of a block has its own states, merged after the row"
                made.take(Reorder(f"{STREAMED}.0", f"{STREAMED}.1").because(why))
            why = f"states are rescaled once for {block} elements"
            made.take(BlockStates(f"{STREAMED}.1").because(why))
        made.take(Vectorize(f"{STREAMED}.1"))

    def _registers(self, made: LoweredKernel, block: int, count: int) -> None:
        """Takes the steps for values in registers: partial sums, tiles, and prefetched loads."""
        walk, loop, axis = self.walk, self.loop, f"{STREAMED}.0"
        kept = self._kept(block, count)
        waits = walk.is_online and not (walk.is_private or walk.column or walk.loose == walk.states)
        is_once = loop.is_first and not loop.is_whole and waits
        ahead = (ONCE.ahead if is_once else self.schedule.stages) if kept < count else 0
        sums, *others = serial_loop(axis, count, kept=kept, ahead=ahead)
        made.may(sums)
        made.take(*others)

    def _kept(self, block: int, count: int) -> int:
        """Returns how many of the `count` tiles of the row stay in registers between two loops."""
        walk = self.walk
        if self.loop.is_whole:
            return count
        if not self.loop.is_first or not self.shape.along or walk.column:
            return 0
        if walk.is_private:
            covered = walk.extent % block == 0
            running = 1 + walk.states - (walk.counts if covered else 0)
        else:
            running = walk.loose if walk.loose == walk.states else 0
        tile, inputs = (block, self.schedule.warps), self.group.blocks[0].params
        return held_tiles(*tile, walk.extent, inputs, running, self.target)


class Walk:
    """The loop over a row in the plain loop nest of a stream."""

    def __init__(self, nest: Node) -> None:
        loops, found = [loop for loop, _ in all_loops(nest)], axes(nest)
        around = [axis_of(n) for n in loops if stores_only(n)]
        # the axes of the programs, with their extents
        self.around = {name: found[name] for name in around if name != STREAMED}
        self.extent = found.get(STREAMED, 1)  # the elements of the row, or of its part
        walks = [n for n in loops if axis_of(n) == STREAMED and axis_of(n) in found]
        first = next((n for n in walks if not stores_only(n)), None)
        block = first.blocks[0] if first is not None else Block((), ())
        states = (states_of(block) if first is not None else None) or []
        self.is_online = any(map(is_online, walks))  # whether states are rescaled
        self.states = len(states)
        # sums that only their own update reads, and states that add the same number each time
        self.loose = sum(scaled(block, s) is not None for s in states)
        self.counts = sum(block.params[0] not in s.part.vars for s in states)
        news = {s.new for s in states}
        # whether some state depends on another one
        self.is_chain = any(not news.isdisjoint(topological([s.part])) for s in states)
        # whether some state is added to when it is rescaled
        self.is_corrected = any(signs(s.kept) == (1, 1) for s in states)
        # whether some state is an integer, such as the position of a maximum
        self.has_positions = any(s.new.dtype.is_integer for s in states)
        # the axis of the programs along which memory is contiguous, if it is not the row's
        self.column = _column(nest, self.around)
        self.row = next(reversed(self.around), "")  # the innermost axis of the programs
        is_cheap = not any(is_expensive(n) for s in states for n in topological([s.kept]))
        # whether each element of a block should have its own states
        self.is_private = is_cheap and self.is_online and self.loose < self.states


def _column(nest: Node, around: Mapping[str, int]) -> str:
    """Returns the axis of the programs along which all arrays that have the streamed axis are
    contiguous; "" if there is none."""
    names = {loop.blocks[0].params[0]: axis_of(loop) for loop, _ in all_loops(nest)}
    columns: set[str] = set()
    for _, node in walk_nodes(nest.blocks[0]):
        if not (is_load(node) and node.args[0].tensor.rank):
            continue
        *outer, last = node.args[1 : 1 + node.args[0].tensor.rank]
        steps = {
            name: found[0] for var, name in names.items() if (found := index_of(last).along(var))
        }
        if any(names.get(n) == STREAMED for n in topological(outer)) or steps.get(STREAMED, 0) > 1:
            columns.add(next((name for name, step in steps.items() if step == 1), ""))
    (column,) = columns if len(columns) == 1 else ("",)
    return column if column in around else ""


class CpuRowStreams(StepLowering[Cpu]):
    """Lowers a stream without products."""

    def take(self, made: LoweredKernel) -> None:
        if STREAMED not in axes(made.kernel):
            raise CannotTile("its streamed axis has one element")
        made.take(Rewrite("powers").because("exp2 takes fewer instructions than exp"))
        (kept, *_) = nests(made.kernel) or [[]]
        part, chunk = self.target.rows.part, self.target.chunk
        _, key = split(made, STREAMED, part, "peel", "a part stays in the first-level cache")
        made.may(BlockStates(key).because("states are rescaled once in a part"))
        _, lane = split(made, key, chunk, "peel", f"a vector has {chunk} lanes")
        made.take(Vectorize(lane))
        for axis in reversed(list(axes(made.kernel))):
            if axis.startswith(STREAMED):
                made.may(Rfactor(axis).because("lanes keep partial sums"))
        for axis in kept:
            if axis != STREAMED:
                made.may(Bind(axis, "cores").because("threads share rows"))
