"""Which axes of a stream programs share, and which a tile holds."""

from __future__ import annotations

from dataclasses import replace

from stack.ir.axes import Index
from stack.ir.dim import Dim, Expr, symbol, symbols
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.passes.blocking.frame import NamedTile
from stack.passes.blocking.reduce import ONCE, PRIVATE, TWICE, WHOLE, ReductionLoop
from stack.passes.blocking.stream_lanes import Loose, loose_states
from stack.passes.blocking.stream_policy import StreamPolicy
from stack.passes.blocking.stream_private import is_alike, is_lane_private
from stack.passes.blocking.stream_shape import stream_shape
from stack.passes.blocking.stream_whole import WholeTiler
from stack.passes.blocking.walk_policy import WalkPolicy
from stack.passes.positions.stream_index_maps import IndexMaps, stream_index_maps
from stack.passes.positions.visible import hiding_selects
from stack.passes.tiling.frame import CannotTile, power_of_two
from stack.schedule import Policy, Schedule
from stack.target import Target


class GridTiler(WholeTiler):
    """The frame of the kernel of a stream: its memory, and the axes of its grid and tiles."""

    def __init__(self, group: Node, target: Target | None = None) -> None:
        super().__init__(group, target)
        self.enter()
        self.has_dot = any(map(is_contraction, self.states.nodes))
        self.has_windows = self.has_dot
        self.is_private = is_lane_private(group)
        self.hiding = dict(hiding_selects(self.states)) if self.has_dot else {}
        self.loose: dict[int, Loose] = {}
        self.lane = ""
        self.part = int(group.attrs.get("part") or 1 << 30)
        self.part_place: Index = ()  # of the results of a part among those of all
        self.lowest: Node | None = None  # -inf past the end of the streamed axis
        self.nothing: frozenset[Node] = frozenset()  # what is -inf or 0 there for that
        self.streamed = ""
        self.along: dict[Node, str] = {}  # the axis of each variable of the grid

    def store(
        self, memory: Node, value: NamedTile, index: Index, guard: NamedTile | None = None
    ) -> Node:
        """As for all kernels; results of a part lie one after the other."""
        return super().store(memory, value, (*self.part_place, *index), guard)

    def policy(self, where: IndexMaps | None = None) -> Policy:
        """What schedules the stream. Raises CannotTile."""
        where = where or stream_index_maps(*self.group.blocks)
        shape = stream_shape(where, self.has_dot)
        if self.has_dot:
            return StreamPolicy(self.group, shape, self.gpu)
        return WalkPolicy(self._usual_walk(bool(shape.along)), shape, self.extent, self.gpu)

    def _usual_walk(self, has_long: bool) -> ReductionLoop:
        """How a program goes along a row, which may be the row of a result too."""
        if not has_long:
            return ONCE
        if len(self.levels()) > 1 and self.holds_whole(self.extent, self.inputs):
            return WHOLE
        return PRIVATE if self.is_private else TWICE

    def _follow(self, schedule: Schedule, has_long: bool) -> None:
        if self.has_dot:
            self.rows, self.step = schedule.block("m"), schedule.block("k")
            self.warps, self.stages = schedule.warps, schedule.stages
            return
        usual = self._usual_walk(has_long)
        hints = {"warps": schedule.warps, "ahead": schedule.stages}
        self.reduction_loop = replace(usual, block=schedule.block("k"), **hints)
        self.warps, self.stages = schedule.warps, 3
        self.is_whole = usual is WHOLE
        if self.is_whole:
            self.kept = -(-self.extent // self.reduction_loop.block)
        elif has_long:
            self._keep_tiles()

    def _keep_tiles(self) -> None:
        """Hold tiles of a row between two walks, where the first waits for none of its steps."""
        states = self.states.results
        running = len(loose_states(self.states, self.correct))
        if self.is_private:
            is_covered = self.extent % self.reduction_loop.block == 0
            running = sum(not (is_covered and is_alike(s)) for s in states)
            running += 1  # for what corrects them
        if self.is_private or running == len(states):
            self.keep_tiles(self.extent, self.inputs, running)

    def _axes(self, where: IndexMaps) -> tuple[dict[str, Dim], tuple[Expr, int] | None]:
        """What each iteration variable is in the kernel; a iteration variable that no state has is
        the streamed axis.
        """
        kept = {s for place in where.states.values() for d in place for s in symbols(d)}
        shape = stream_shape(where, self.has_dot)
        self._follow(self.policy(where).of(self.group), bool(shape.along))
        values: dict[str, Dim] = {}
        long: tuple[Expr, int] | None = None
        for iter_var in where.iter_vars:
            name, extent = str(iter_var), shape.extents[str(iter_var)]
            if extent == 1:
                values[name] = 0
            elif not symbols(iter_var) & kept:
                if long is not None:
                    raise CannotTile("two axes of its result are not those of its states")
                long = (symbol("long", 0, extent - 1), extent)
                values[name] = long[0]
            elif name in shape.lanes:
                block = max(16, power_of_two(extent))
                values[name] = self.axis("e", extent, block).place
            else:
                block = 1
                if name == shape.row:
                    block = min(self.rows, max(16, power_of_two(extent)))
                hint = "m" if block > 1 else "b"
                axis = self.program_axis(hint, extent, block, self.grid, block > 1)
                self.along.update({v: axis.name for v, _ in self.grid if v not in self.along})
                values[name] = axis.place
        if "part" in self.group.attrs:
            if long is not None:
                raise CannotTile("a result of parts has the streamed axis")
            parts = -(-self.extent // self.part)
            axis = self.program_axis("s", parts, 1, self.grid)
            self.along.update({v: axis.name for v, _ in self.grid if v not in self.along})
            self.part_place = (axis.place,)
        return values, long


__all__ = ["GridTiler"]
