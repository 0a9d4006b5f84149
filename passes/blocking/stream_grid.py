"""Which axes of a stream programs share, and which a tile holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, Expr, symbol, symbols
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.passes.blocking.frame import Held
from stack.passes.blocking.reduce import APART, ONCE, TWICE
from stack.passes.blocking.stream_apart import is_alike, runs_apart
from stack.passes.blocking.stream_extents import extents, in_parts
from stack.passes.blocking.stream_lanes import Loose, loose_states
from stack.passes.blocking.stream_whole import WholeTiler
from stack.passes.blocking.tile_choice import Tile
from stack.passes.positions.visible import hiding_selects
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.target import Target

# of a product that another takes, at least: Triton 3.6 reads astray where warps have fewer
WARP_ROWS = 16
MAX_LANES = 256  # of a state that is a dot: held whole


class GridTiler(WholeTiler):
    """The frame of the kernel of a stream: its memory, and the axes of its grid and tiles."""

    def __init__(
        self,
        group: Node,
        rows: int = 0,
        lanes: int = 0,
        step: int = 0,
        target: Target | None = None,
    ) -> None:
        named = group.attrs.get("tiles")
        self.tile = Tile.parse(named[0]) if named else None
        if self.tile is not None:
            rows, step = rows or self.tile.rows, step or self.tile.step
        height, depth = extents(group)
        super().__init__(group, rows or height, lanes, step or depth, target)
        self.states, self.correct, self.ending = group.blocks
        for p, q in zip(self.states.params, self._arguments(), strict=True):
            self.inputs[q] = self.inputs[p]
        self.extent = static(streamed_extent(group))
        self.has_dot = any(n.op == "dot" for n in self.states.nodes)
        self.has_windows = self.has_dot
        self.is_apart = runs_apart(group)
        self.hiding = dict(hiding_selects(self.states)) if self.has_dot else {}
        self.loose: dict[int, Loose] = {}
        self.lane = ""
        self.part = int(group.attrs.get("part") or 1 << 30)
        self.part_place: Index = ()  # of the results of a part among those of all
        self.lowest: Node | None = None  # -inf past the end of the streamed axis
        self.nothing: frozenset[Node] = frozenset()  # what is -inf or 0 there for that
        self.streamed = ""
        self.along: dict[Node, str] = {}  # the axis of each variable of the grid
        for block in (self.states, self.ending):
            for array in (n for n in block.nodes if n.op == "const" and n.tensor.rank):
                if array not in self.inputs:
                    self.inputs[array] = self.memory(f"p{len(self.args)}", array.tensor)
                    self.args.append(array)

    def _arguments(self) -> Sequence[Node]:
        return self.ending.params[len(self.states.results) :]

    def _ops(self) -> tuple[str, ...]:
        nodes = (*self.states.nodes, *self.ending.nodes)
        return tuple(dict.fromkeys(n.op for n in nodes if n.op != "const"))

    def locs(self, node: Node) -> tuple[str, ...]:
        return self.states.locs.get(node) or self.ending.locs.get(node, ())

    def store(self, memory: Node, value: Held, index: Index) -> Node:
        """As for all kernels; results of a part lie one after the other."""
        return super().store(memory, value, (*self.part_place, *index))

    def _axes(
        self, marks: Index, places: Mapping[Node, Index]
    ) -> tuple[dict[str, Dim], tuple[Expr, int] | None]:
        """What each mark is in the kernel; a mark that no state has is the streamed axis."""
        kept = {s for place in places.values() for d in place for s in symbols(d)}
        lanes = self._lanes(places)
        extents = {str(m): _extent(m) for m in marks}
        row = self._row(places, [m for m in extents if m not in lanes], extents)
        values: dict[str, Dim] = {}
        long: tuple[Expr, int] | None = None
        height = 1
        for mark in marks:
            name, extent = str(mark), extents[str(mark)]
            if extent == 1:
                values[name] = 0
            elif not symbols(mark) & kept:
                if long is not None:
                    raise CannotTile("two axes of its result are not those of its states")
                long = (symbol("long", 0, extent - 1), extent)
                values[name] = long[0]
            elif name in lanes:
                block = max(16, power_of_two(extent))
                values[name] = self.axis("e", extent, block).place
            else:
                block = 1
                if name == row:
                    height = block = min(self.rows, max(16, power_of_two(extent)))
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
        widest = max((a.block for a in self.axes.values() if a.name.startswith("e")), default=0)
        sums = sum(s.op == "dot" for s in self.states.results)
        parts = 2 if any(in_parts(n) for n in self.states.nodes if n.op == "dot") else 1
        big = (self.rows >= 128 and self.step >= 128) or (
            parts * sums * widest * self.rows > 128 * 128
        )
        self.warps = 8 if self.has_dot and big else 4
        # what fits beside a wide sum
        self.stages = 2 if widest > 64 and parts * self.step > 32 and height > 64 else 3
        if sum(n.op == "dot" for n in self.states.nodes) > 2 and (widest > 64 or sums > 1):
            self.stages = 2
        if not self.has_dot:
            self.walk = ONCE if long is None else TWICE
            running = len(loose_states(self.states, self.correct))
            waits = not self.is_apart and running < len(self.states.results)
            if self.is_apart and long is not None:
                self.walk = APART
                is_covered = self.extent % APART.block == 0
                running = sum(not (is_covered and is_alike(s)) for s in self.states.results)
                running += 1  # for what corrects them
            if long is not None and len(self.levels()) > 1:
                self.is_whole = self.keep_whole(self.extent, self.inputs)
            if long is not None and not waits and not self.is_whole:
                self.keep_tiles(self.extent, self.inputs, running)
            self.warps = self.walk.warps
        if self.tile is not None:
            self.warps, self.stages = self.tile.warps, self.tile.stages
        if self.has_dot:
            self.warps = min(self.warps, max(4, height // WARP_ROWS))
        return values, long

    def _row(
        self, places: Mapping[Node, Index], marks: Sequence[str], extents: Mapping[str, int]
    ) -> str:
        """The mark of the rows of a tile: the longest that the operand in memory does not have.

        A result may group axes of a state: its mark is then part of several of them.
        """
        if not self.has_dot:
            return ""
        own: set[str] = set()
        for state, place in places.items():
            if state.op == "dot":
                rule = parse_rule(state.attrs["rule"])
                names = [{a.names[0] for a in operand} for operand in rule.inputs]
                other = 0 if self._memory_side(state) else 1
                rows: set[str] = set()
                others: set[str] = set()
                for axis, dim in zip(rule.outputs[0], place, strict=True):
                    is_own = axis.names[0] in names[other] - names[1 - other]
                    (rows if is_own else others).update(str(m) for m in symbols(dim))
                own |= rows - others
        kept = {str(d) for place in places.values() for d in place}
        found = [m for m in marks if m in own] or [m for m in marks if m in kept]
        return max(found, key=lambda m: extents[m], default="")

    def _memory_side(self, state: Node) -> int:
        """Which operand of a dot lies in memory; the other is computed."""
        return 0 if self.is_read(state.args[0]) and not self.is_read(state.args[1]) else 1

    def _lanes(self, places: Mapping[Node, Index]) -> set[str]:
        """Marks of axes that only the operand of a dot in memory has: held whole."""
        found: set[str] = set()
        for state, place in places.items():
            if state.op != "dot":
                continue
            rule = parse_rule(state.attrs["rule"])
            own = [{a.names[0] for a in operand} for operand in rule.inputs]
            side = self._memory_side(state)
            for axis, dim in zip(rule.outputs[0], place, strict=True):
                name = axis.names[0]
                if name in own[side] and name not in own[1 - side] and isinstance(dim, Expr):
                    if _extent(dim) > MAX_LANES:
                        raise CannotTile(f"a state of {_extent(dim)} columns does not fit a tile")
                    found.add(str(dim))
        return found


def _extent(mark: Dim) -> int:
    if isinstance(mark, Expr) and len(mark.terms) == 1 and len(mark.terms[0][0]) == 1:
        high = getattr(mark.terms[0][0][0], "high", None)
        if isinstance(high, int):
            return high + 1
    raise CannotTile(f"a state sits at a computed index, {mark}")


__all__ = ["GridTiler"]
