"""Streams to kernels of blocks: one loop along the streamed axis that carries all states.

Each step computes, for the states in order, what the `states` block makes of a tile, and adds it
to the old value as `correct` gives it. Where a comparison of positions hides whole tiles, the loop
leaves them out, and where it hides nothing, the comparison is left out (`limits`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, Expr, substitute, symbol, symbols
from stack.ir.node import Node
from stack.ir.stream_op import streamed_axes, streamed_extent
from stack.passes.blocking.branch import branched
from stack.passes.blocking.frame import Axis, Held
from stack.passes.blocking.limits import Segment, segments
from stack.passes.blocking.order import by_reuse
from stack.passes.blocking.reduce import APART, ONCE, TWICE
from stack.passes.blocking.stream_apart import is_alike, runs_apart
from stack.passes.blocking.stream_extents import extents, in_parts
from stack.passes.blocking.stream_lanes import Loose, loose_states
from stack.passes.blocking.stream_places import stream_places
from stack.passes.blocking.stream_whole import WholeTiler
from stack.passes.blocking.tile_choice import Tile
from stack.passes.positions.assumed import Assumed, assumed
from stack.passes.positions.visible import hidden, hiding_selects
from stack.passes.tiling.frame import COMBINE, CannotTile, power_of_two, static, wide

TILES = (
    *(Tile(128, 0, 64, 8, 2), Tile(128, 0, 64, 8, 3), Tile(128, 0, 128, 8, 2)),
    *(Tile(128, 0, 32, 8, 3), Tile(64, 0, 64, 4, 3), Tile(64, 0, 32, 4, 3), Tile(64, 0, 128, 4, 2)),
)
# of a product that another takes, at least: Triton 3.6 reads astray where warps have fewer
WARP_ROWS = 16
MAX_LANES = 256  # of a state that is a dot: held whole


class StreamTiler(WholeTiler):
    """Builds the kernel of a stream."""

    def __init__(self, group: Node, rows: int = 0, lanes: int = 0, step: int = 0) -> None:
        named = group.attrs.get("tiles")
        self.tile = Tile.parse(named[0]) if named else None
        if self.tile is not None:
            rows, step = rows or self.tile.rows, step or self.tile.step
        height, depth = extents(group)
        super().__init__(group, rows or height, lanes, step or depth)
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

    def _parameters(self) -> list[Node]:
        return list(dict.fromkeys(self.inputs.values()))

    def _ops(self) -> tuple[str, ...]:
        nodes = (*self.states.nodes, *self.ending.nodes)
        return tuple(dict.fromkeys(n.op for n in nodes if n.op != "const"))

    def locs(self, node: Node) -> tuple[str, ...]:
        return self.states.locs.get(node) or self.ending.locs.get(node, ())

    # ---- the kernel

    def kernel(self) -> Node:
        """The kernel node of the stream. Raises CannotTile."""
        where = stream_places(self.states, self.correct, self.ending)
        values, long = self._axes(where.marks, where.states)
        at = {s: tuple(substitute(d, values) for d in p) for s, p in where.states.items()}
        final = self._stream(at)
        self.grid = by_reuse(self.grid, self.along, self.met)
        self.memo.clear()
        for param, state, held in zip(self.ending.params, self.states.results, final, strict=False):
            self.known[param] = (at[state], held)
        outputs = [
            (r, tuple(substitute(d, values) for d in place))
            for r, place in zip(self.ending.results, where.results, strict=True)
        ]
        return self.finish(outputs, long)

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
        """The mark of the rows of a tile: the longest that the operand in memory does not have."""
        if not self.has_dot:
            return ""
        own: set[str] = set()
        for state, place in places.items():
            if state.op == "dot":
                rule = parse_rule(state.attrs["rule"])
                names = [{a.names[0] for a in operand} for operand in rule.inputs]
                other = 0 if self._memory_side(state) else 1
                for axis, dim in zip(rule.outputs[0], place, strict=True):
                    if axis.names[0] in names[other] - names[1 - other]:
                        own.add(str(dim))
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

    # ---- the loop

    def _stream(self, at: Mapping[Node, Index]) -> list[Held]:
        block = min(power_of_two(self.extent), self.step if self.has_dot else self.walk.block)
        block = max(min(block, self.part & -self.part), 16 if self.has_dot else 2)
        count = -(-self.extent // block)
        if self.is_whole:
            return self.run_whole(at, block, count)
        if self.is_apart:
            return self.run_apart(at, block, count, self._of_part(None, block, count))
        self.loose = {} if self.has_dot else loose_states(self.states, self.correct)
        self.lane = self.axis("lane", block, block).name if self.loose else ""
        guess = assumed(self.states) if self.has_dot else None
        held = self._pass(at, block, count) if guess is None else []
        if guess is not None:
            held = self._guessed(guess, at, block, count)
        found = iter(held)
        return [self._total(next(found), found, j) for j in range(len(self.states.results))]

    def _pass(self, at: Mapping[Node, Index], block: int, count: int) -> list[Held]:
        """All states after the steps that matter."""
        if self.has_dot and self.extent % block:
            self._hide_the_end()
        held = self._start(at)
        for segment in self._segments(at, block, count):
            limits = self._of_part(segment.limits, block, count)
            held = self._segment(Segment(limits, segment.fixed), held, at, block, count)
        return held

    def _start(self, at: Mapping[Node, Index]) -> list[Held]:
        """All states before the first element."""
        held: list[Held] = []
        for j, state in enumerate(self.states.results):
            kind = "sum" if state.op == "dot" else str(state.attrs["kind"])
            axes = self.union([Held(state, tuple(self.tile_axes(d))) for d in at[state]])
            start = self.identity(kind, wide(state.dtype))
            held.append(Held(self.spread(start, axes), axes))
            if j in self.loose:
                lanes = (*axes, self.lane)
                held.append(Held(self.spread(start, lanes), lanes))
        return held

    def _guessed(
        self, guess: Assumed, at: Mapping[Node, Index], block: int, count: int
    ) -> list[Held]:
        """All states as if masks were of -inf; where some row tells otherwise, without that."""
        states = self.states
        inside = {
            new: at[old] for new, old in zip(guess.states.results, states.results, strict=True)
        }
        if not any(s.limits for s in segments(self, guess.states, inside, block, count)):
            return self._pass(at, block, count)
        self.states, self.hiding = guess.states, dict(hiding_selects(guess.states))
        held = self._pass(inside, block, count)
        self.states, self.hiding = states, {}
        wrong: Held | None = None
        for j, floor in guess.floors.items():
            least = self.fold(held[j], "min", held[j].axes) if held[j].axes else held[j]
            holds = self.apply("gt", [least, Held(constant(floor, least.dtype))])
            fails = self.apply("not", [holds])
            wrong = fails if wrong is None else self.apply("or", [wrong, fails])
        assert wrong is not None

        def again(turn: Node, carried: list[Held]) -> list[Held]:
            if self.extent % block:
                self._hide_the_end()
            # from the turn on: what does not depend on it is not in the branch
            limits = self._of_part((turn, self.int(count).node), block, count)
            return self._segment(Segment(limits), self._start(at), at, block, count, ahead=1)

        turns = (self.int(0).node, self.cast(wrong, self.integer).node)
        return self.steps(1, held, again, "turn", turns, kind="branch")

    def _segments(self, at: Mapping[Node, Index], block: int, count: int) -> list[Segment]:
        """The loops of the stream, in order.

        Three loops with products cost more than one with a branch, two cost less: each loop begins
        by waiting for its copies. Measured on an H100.
        """
        found = segments(self, self.states, at, block, count)
        is_cut = len(found) > 1
        if not self.has_dot or (is_cut and (len(found) == 2 or len(self.hiding) > 1)):
            self.hiding = {}
            return found
        first, last = found[0].limits, found[-1].limits
        return [Segment((first[0], last[1]) if first and last else None)]

    def _of_part(
        self, limits: tuple[Node, Node] | None, block: int, count: int
    ) -> tuple[Node, Node] | None:
        """The steps of a program: those of its part of the axis."""
        if not self.part_place:
            return limits
        if self.part % block:
            raise CannotTile(f"parts of {self.part} are no steps of {block}")
        steps = self.part // block
        first = self.apply("mul", [self.number(self.part_place[0]), self.int(steps)])
        end = self.apply("min", [self.apply("add", [first, self.int(steps)]), self.int(count)])
        if limits is None:
            return first.node, end.node
        begin = self.apply("max", [first, Held(limits[0])])
        return begin.node, self.apply("min", [end, Held(limits[1])]).node

    def _value(self, node: Node, index: Index, guard: Held | None) -> Held:
        if node in self.hiding and self.streamed and guard is None:
            made = branched(self, node, self.hiding[node], index, self.axes[self.streamed])
            if made is not None:
                return made
        return super()._value(node, index, guard)

    def _total(self, held: Held, rest: Iterator[Held], j: int) -> Held:
        """A state after the pass, its places added up."""
        if j not in self.loose:
            return held
        lanes = self.fold(next(rest), "sum", [self.lane])
        return self.apply("add", [held, lanes]) if self.loose[j].addend is not None else lanes

    def _segment(
        self,
        segment: Segment,
        held: Sequence[Held],
        at: Mapping[Node, Index],
        block: int,
        count: int,
        ahead: int = 0,
    ) -> list[Held]:
        """All states after a run of steps; `ahead` as for `steps`."""

        def body(var: Node, carried: list[Held]) -> list[Held]:
            self.memo.clear()
            self.known.clear()
            axis = self.axis("k", self.extent, block, self.begin(var, block))
            self.streamed = axis.name
            n = len(self.states.results)
            slots = iter(carried)
            old: list[Held] = []
            lanes: dict[int, Held] = {}
            for j in range(n):
                old.append(next(slots))
                if j in self.loose:
                    lanes[j] = next(slots)
            new: list[Held] = []
            for j, state in enumerate(self.states.results):
                place = at[state]
                self.known[self.correct.params[j]] = (place, old[j])
            for j, state in enumerate(self.states.results):
                place = at[state]
                for known, source in segment.fixed.items():
                    self.known_as[known] = source
                if j in self.loose:
                    new.extend(self._loose_step(j, old[j], lanes[j], place, axis))
                    self.known_as.clear()
                    continue
                part = self._partial(state, place, axis.name)
                self.known_as.clear()
                kept = self.value(self.correct.results[j], place)
                kind = "sum" if state.op == "dot" else str(state.attrs["kind"])
                part = Held(self.spread(part, old[j].axes), old[j].axes)
                made = self.apply(COMBINE[kind], [kept, part])
                made = Held(self.spread(made, old[j].axes), old[j].axes)
                new.append(made)
                self.known[state] = (place, made)
                self.known[self.correct.params[n + j]] = (place, made)
            return new

        names = [
            name
            for j in range(len(self.states.results))
            for name in ([f"s{j}_", f"lanes{j}_"] if j in self.loose else [f"s{j}_"])
        ]
        ahead = ahead if self.has_dot else self.walk.ahead
        if self.walk.is_first and len(self.loose) < len(self.states.results):
            ahead = ONCE.ahead  # steps wait for each other: memory should not
        made = self.first_walk(count, held, body, names, ahead, "k", segment.limits)
        self.memo.clear()
        self.known.clear()
        return made

    def _hide_the_end(self) -> None:
        """Find one value that hides the places past the end from all states."""
        for state in self.states.results:
            if state.op == "reduce" and state.attrs["kind"] == "max":
                (operand, _), *_ = streamed_axes(state)
                found = hidden(self.states, operand, -math.inf)
                if found is not None and operand.dtype.is_float:
                    self.lowest, self.nothing = operand, found

    def value(self, node: Node, index: Index, guard: Held | None = None) -> Held:
        made = super().value(node, index, guard)
        if node is not self.lowest:
            return made
        return super().masked(made, "max", [self.streamed])

    def is_nothing(self, node: Node) -> bool:
        return node in self.nothing

    def _partial(self, state: Node, place: Index, k: str) -> Held:
        """A state over one tile of the streamed axis."""
        axis = self.axes[k]
        if state.op == "dot":
            rule = parse_rule(state.attrs["rule"])
            index = {a.names[0]: d for a, d in zip(rule.outputs[0], place, strict=True)}
            index[rule.reduced[0]] = axis.place
            return self.product(state, index, axis, None)
        fold = self.folded if self.is_nothing(streamed_axes(state)[0][0]) else self.fold
        return fold(self._places(state, place, axis), str(state.attrs["kind"]), [k])

    def _places(self, state: Node, place: Index, axis: Axis) -> Held:
        """What a state reduces, on one tile of the streamed axis."""
        operand, at = streamed_axes(state)[0]
        full = list(place)
        full.insert(at, axis.place)
        return self.spread_over(self.value(operand, tuple(full)), [axis])

    def _loose_step(
        self, j: int, old: Held, lanes: Held, place: Index, axis: Axis
    ) -> tuple[Held, Held]:
        """The next values of a sum that is kept place by place: what is added at once, the rest."""
        loose, state = self.loose[j], self.states.results[j]
        names = [axis.name] if axis.is_tile else []
        value = self.masked(self._places(state, place, axis), "sum", names)
        value = Held(self.spread(value, [*old.axes, *names]), lanes.axes)
        if loose.factor is not None:
            lanes = self.apply("mul", [lanes, self.value(loose.factor, place)])
        made = old
        if loose.addend is not None:
            made = self.value(self.correct.results[j], place)
            made = Held(self.spread(made, old.axes), old.axes)
        return made, self.apply("add", [lanes, value])


def stream_tiles(group: Node) -> list[Tile]:
    """Tiles for a stream with a product, the tiler's own choice first; none where it has none.

    `lanes` is 0: the columns of a sum are held whole.
    """
    try:
        tiler = StreamTiler(group)
        if not tiler.has_dot:
            return []
        tiler.kernel()
    except CannotTile:
        return []  # `blocks` says why
    own = Tile(tiler.rows, 0, tiler.step, tiler.warps, tiler.stages)
    return [own, *(tile for tile in TILES if tile != own)]


def _extent(mark: Dim) -> int:
    if isinstance(mark, Expr) and len(mark.terms) == 1 and len(mark.terms[0][0]) == 1:
        high = getattr(mark.terms[0][0][0], "high", None)
        if isinstance(high, int):
            return high + 1
    raise CannotTile(f"a state sits at a computed index, {mark}")
