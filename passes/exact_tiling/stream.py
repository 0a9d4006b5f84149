"""Streams to kernels for a CPU: lanes are rows of the stream, a loop over panels of keys.

A program takes `tile` rows, one in each vector lane. For a panel of keys it computes products with
the keys, then sweeps over the panel: one sweep for the states that need no other, one for those
that need these, and so on. A sum over the panel is added to the running value as `correct` gives
it, once for each panel. States that are dots with something wide lie in local memory, a row for
each of its columns; the others stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, minimum, mul, substitute, symbol
from stack.ir.node import Node, topological
from stack.ir.traits import fold_of, is_reduction
from stack.ir.types import F32, I64, DType
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.limits import Segment, segments
from stack.passes.blocking.values import Reader
from stack.passes.exact_tiling.stream_axes import stream_axes
from stack.passes.exact_tiling.stream_policy import PanelPolicy
from stack.passes.exact_tiling.stream_powers import with_powers_of_two
from stack.passes.exact_tiling.stream_results import StreamResults
from stack.passes.positions.assumed import Assumed, assumed
from stack.passes.positions.stream_operands import operand_place
from stack.passes.positions.stream_shape import memory_side
from stack.passes.tiling.frame import COMBINE, CannotTile, is_expensive, wide
from stack.target import Mma, Target, as_cpu

Value = Callable[[Dim], NamedTile]  # at a key
Sink = Callable[[NamedTile, Sequence[NamedTile]], NamedTile]  # what is held, values of a turn


class StreamTiler(StreamResults):
    """Builds the kernel of a stream with a product in it.

    Args:
        step: keys of a panel; 0 follows its schedule.
        target: the CPU.
    """

    def __init__(self, stream: Node, step: int = 0, target: Target | None = None) -> None:
        stream = with_powers_of_two(stream)
        super().__init__(stream)
        self.cpu = as_cpu(target)
        if any(wide(s.dtype) != F32 for s in self.states.results):
            raise CannotTile("a state is not held in f32")
        self.roles = stream_axes(stream)
        schedule = PanelPolicy(stream, self.cpu).of(stream)
        self.tile = schedule.block("m")
        self.step = min(step or schedule.block("k"), self.extent)

    # ---- the kernel

    def kernel(self) -> Node:
        """The kernel node of the stream. Raises CannotTile."""
        self._grid()
        self.programs = math.prod(count for _, count in self.grid)
        self.program = tuple(var for var, _ in self.grid)

        def program(memories: Sequence[Node]) -> list[Node]:
            final = self._stream()
            self.memo.clear()
            self.known.clear()
            for param, state, held in zip(self.ending.params, self.states.results, final):
                self.known[param] = self._reader(state, held)
            return [
                self._store_rows(result, memory, place)
                for result, memory, place in zip(
                    self.ending.results, memories, self.roles.placed.results, strict=True
                )
            ]

        return self.built(self.in_grid(self.grid, self.outputs, program))

    def _grid(self) -> None:
        """What each iteration variable is in the kernel."""
        row, sizes = self.roles.row, self.roles.sizes
        names = iter("ghijkl")
        for name, size in sizes.items():
            if name not in (self.roles.column, row):
                self.values[name] = 0
                if size > 1:
                    made = self.program_axis(next(names, "l"), size, 1, self.grid)
                    self.values[name] = made.place
        count = -(-sizes[row] // self.tile)
        if count > 1:
            made = self.program_axis(next(names, "l"), count, 1, self.grid)
            self.begin = mul(made.place, self.tile)
            if sizes[row] % self.tile:  # the last rows start early rather than end late
                self.begin = minimum(self.begin, sizes[row] - self.tile)
        begin, is_aligned = self.number(self.begin).node, sizes[row] % self.tile == 0
        self.lane = self.axis("t", sizes[row], self.tile, begin, is_aligned, overlaps=True)
        self.values[row] = self.lane.place

    def _place(self, state: Node, column: Dim = 0) -> Index:
        """Where a state sits; wide ones at one column."""
        values = {**self.values, self.roles.column: column} if self.roles.column else self.values
        return tuple(substitute(d, values) for d in self.roles.placed.states[state])

    def _is_wide(self, state: Node) -> bool:
        return state in self.roles.wide

    def _reader(self, state: Node, held: NamedTile) -> Reader:
        """How a state is read: from registers, or a row of memory."""
        here = self.roles.placed.states[state]
        at = [i for i, d in enumerate(here) if str(d) == self.roles.column]

        def read(index: Index) -> NamedTile:
            column = index[at[0]] if at else 0
            if index != self._place(state, column):
                raise CannotTile("a state is read at a computed index")
            return self.line(held.node, column) if at else held

        return read

    # ---- the loop over panels

    def _stream(self) -> list[NamedTile]:
        shape = (self.roles.columns, self.tile)
        memories = [
            NamedTile(self.local("sums", shape, self.program)) if self._is_wide(s) else None
            for s in self.states.results
        ]
        guess = assumed(self.states)
        if guess is None:
            return self._pass(self._start(memories), self._segments())
        states, roles = self.states, self.roles
        self.states = guess.states
        blocks = (guess.states, self.correct, self.ending)
        self.roles = stream_axes(
            Node("stream", self.group.args, self.group.attrs, self.group.type, blocks)
        )
        found = self._segments()
        helps = any(segment.limits for segment in found)
        held = self._pass(self._start(memories), found) if helps else []
        self.states, self.roles = states, roles
        return (
            self._unless(guess, held) if helps else self._pass(self._start(memories), [Segment()])
        )

    def _unless(self, guess: Assumed, held: list[NamedTile]) -> list[NamedTile]:
        """All states, computed again as they are written where some row tells against a guess."""
        once = self.loop_axis("g", 1)
        # from its turn on: what does not depend on that is not inside
        whole = Segment((once.start, constant(self.extent // self.step, I64)))
        limits = (constant(0, I64), self.fails(guess, held))

        def again(var: Node, old: list[NamedTile]) -> list[NamedTile]:
            return self._pass(self._start(old), [whole])

        return self.along(once, held, again, "held", limits)

    def _pass(self, held: list[NamedTile], segments: Sequence[Segment]) -> list[NamedTile]:
        """All states after runs of panels, and what is left behind them."""
        count, rest = divmod(self.extent, self.step)
        for segment in segments:
            held = self._segment(segment, held, count)
        if rest:
            held = self._panel(count * self.step, rest, held, Segment())
        return held

    def _start(self, memories: Sequence[NamedTile | None]) -> list[NamedTile]:
        """All states before the first element; wide ones in memories."""
        held: list[NamedTile] = []
        for state, memory in zip(self.states.results, memories, strict=True):
            start = self.spread_over(self.identity(fold_of(state), wide(state.dtype)), [self.lane])
            if memory is None or not self._is_wide(state):
                held.append(start)
                continue
            step = self.loop_axis("e", self.roles.columns)

            def fill(m: Node, start: NamedTile = start, step: Axis = step) -> Node:
                return self.keep(m, start, step.place)

            held.append(NamedTile(self.over(step, memory.node, fill)))
        return held

    def _segments(self) -> list[Segment]:
        """Runs of panels that a comparison of positions leaves."""
        count = self.extent // self.step
        column = self.roles.column
        at = {
            state: self._place(state, symbol(column, 0, self.roles.columns - 1) if column else 0)
            for state in self.states.results
        }
        return segments(self, self.states, at, self.step, count)

    def _segment(self, segment: Segment, held: list[NamedTile], count: int) -> list[NamedTile]:
        if count == 1 and segment.limits is None:
            return self._panel(0, self.step, held, segment)
        panel = self.loop_axis("p", count)
        first = mul(panel.place, self.step)

        def body(var: Node, old: list[NamedTile]) -> list[NamedTile]:
            return self._panel(first, self.step, old, segment, var)

        return self.along(panel, held, body, "held", segment.limits)

    def _panel(
        self, first: Dim, size: int, old: list[NamedTile], segment: Segment, *inside: Node
    ) -> list[NamedTile]:
        """The states after one more panel of keys."""
        self.first, self.size = first, size
        self.iteration = (*self.program, *inside)
        self.memo.clear()
        self.known.clear()
        self.scores.clear()
        self.panels.clear()
        for select, source in segment.fixed.items():
            self.known[select] = lambda index, source=source: self.value(source, index)
        states, n = self.states.results, len(self.states.results)
        for j, state in enumerate(states):
            self.known[self.correct.params[j]] = self._reader(state, old[j])
        new = list(old)
        levels = self.levels()
        for level in levels:
            expensive = [] if level is levels[-1] else self._expensive(level)
            parts = self._sweep([states[j] for j in level], expensive)
            for j in level:
                state = states[j]
                new[j] = self._merged(j, old[j], parts[state])
                self.known[state] = self._reader(state, new[j])
                self.known[self.correct.params[n + j]] = self._reader(state, new[j])
        return new

    # ---- one panel

    def _expensive(self, level: Sequence[int]) -> list[Node]:
        """What a sweep reduces that is expensive, and that a later one computes again."""
        states = [self.states.results[j] for j in level]
        found = [s.args[0] for s in states if is_reduction(s)]
        return [n for n in dict.fromkeys(found) if any(map(is_expensive, topological([n])))]

    def _sweep(self, states: Sequence[Node], expensive: Sequence[Node]) -> dict[Node, NamedTile]:
        """For each state its part of the panel; of a wide one, what the columns multiply.

        Values of `expensive` are kept for later sweeps.
        """
        mmas = (self._mma(s) for s in states if self._is_wide(s))
        group = max((m.group for m in mmas if m is not None), default=1)
        turn = self.loop_axis("k", self.size // group)
        self.key, *_ = keys = self._keys(turn, group)
        init: list[NamedTile] = []
        values: list[Value] = []
        sinks: list[Sink] = []
        for state in states:
            if self._is_wide(state):
                # as an instruction takes them, where one multiplies them
                mma, side = self._mma(state), 1 - memory_side(state)
                dtype, count = (state.args[side].dtype, mma.group) if mma else (F32, 1)
                values.append(lambda k, s=state, i=side: self._operand(s, k, i))
                init.append(NamedTile(self._weights(count, dtype)))
                sinks.append(self._kept_together(turn) if count > 1 else self._kept_apart(keys))
            else:
                kind = fold_of(state)
                values.append(lambda k, s=state: self._term(s, k))
                start = self.identity(kind, wide(state.dtype))
                init.append(self.spread_over(start, [self.lane]))
                sinks.append(self._combined(COMBINE[kind]))
        places: list[Index] = []
        for node in expensive:
            state = next(s for s in states if s.args[0] is node)
            key = add(self.first, self.key.place)
            places.append(operand_place(state, self._place(state), key))
            values.append(lambda k, s=state: self._operand(s, k, 0))
            shape = (self.size, self.tile)
            init.append(NamedTile(self.local("kept", shape, self.iteration, wide(node.dtype))))
            sinks.append(self._kept_apart(keys))

        def body(var: Node, held: list[NamedTile]) -> list[NamedTile]:
            made: list[list[NamedTile]] = []
            for self.key in keys:
                key = add(self.first, self.key.place)
                made.append([self.spread_over(value(key), [self.lane]) for value in values])
            parts = zip(*made, strict=True)
            return [sink(h, p) for sink, h, p in zip(sinks, held, parts, strict=True)]

        made = self.along(turn, init, body, "held")
        for node, place, memory in zip(expensive, places, made[len(states) :], strict=True):
            self.known[node] = self._kept(node, place, memory.node)
        return dict(zip(states, made, strict=False))

    def _keys(self, turn: Axis, group: int) -> list[Axis]:
        """The keys of one turn of a sweep."""
        if group == 1:
            return [turn]
        starts = [self.number(add(mul(turn.place, group), i)).node for i in range(group)]
        return [self.axis("k", self.size, 1, start) for start in starts]

    def _operand(self, state: Node, key: Dim, side: int) -> NamedTile:
        return self.value(state.args[side], operand_place(state, self._place(state), key, side))

    def _weights(self, group: int, dtype: DType) -> Node:
        """Memory for what columns multiply, `group` keys together."""
        together = (group,) if group > 1 else ()
        shape = (self.size // group, self.tile, *together)
        return self.local("weights", shape, self.iteration, dtype)

    def _combined(self, kind: str) -> Sink:
        return lambda held, parts: self.apply(kind, [held, reduce(self._apply(kind), parts)])

    def _apply(self, kind: str) -> Callable[[NamedTile, NamedTile], NamedTile]:
        return lambda a, b: self.apply(kind, [a, b])

    def _kept_apart(self, keys: Sequence[Axis]) -> Sink:
        """A row for each key."""

        def sink(held: NamedTile, parts: Sequence[NamedTile]) -> NamedTile:
            memory = held.node
            for key, part in zip(keys, parts, strict=True):
                memory = self.keep(memory, part, key.place)
            return NamedTile(memory)

        return sink

    def _kept_together(self, turn: Axis) -> Sink:
        """A row for all keys of a turn, which lie together in each lane."""

        def sink(held: NamedTile, parts: Sequence[NamedTile]) -> NamedTile:
            inside = (*self.iteration, turn.start)
            rows = self.local("turn", (len(parts), self.tile), inside, held.dtype)
            for i, part in enumerate(parts):
                rows = self.keep(rows, part, i)
            zero = constant(0, I64)
            block = self.b.transpose(self.all_of(rows), perm=(1, 0))
            place = self.number(turn.place).node
            return NamedTile(self.b.store(held.node, block, place, zero, zero))

        return sink

    def _mma(self, state: Node) -> Mma | None:
        """What the product of a wide state goes by, in the panel under way."""
        return self.mma(state, self.roles.columns, self.size)

    def _kept(self, node: Node, place: Index, memory: Node) -> Reader:
        """How a value of an earlier sweep is read: from memory where that is at the same place."""
        base = tuple(substitute(d, {self.key.name: 0}) for d in place)

        def read(index: Index) -> NamedTile:
            if tuple(substitute(d, {self.key.name: 0}) for d in index) == base:
                return self.line(memory, self.key.place)
            return self.computed(node, index)

        return read

    def _term(self, state: Node, key: Dim) -> NamedTile:
        """What one key adds to a state in registers."""
        place = self._place(state)
        parts = [
            self.value(arg, operand_place(state, place, key, side))
            for side, arg in enumerate(state.args)
        ]
        return self.apply("mul", parts) if len(parts) > 1 else parts[0]

    def _merged(self, j: int, old: NamedTile, part: NamedTile) -> NamedTile:
        """A state after a panel."""
        state, corrected = self.states.results[j], self.correct.results[j]
        if not self._is_wide(state):
            kept = self.value(corrected, self._place(state))
            return self.spread_over(self.apply(COMBINE[fold_of(state)], [kept, part]), [self.lane])
        side = memory_side(state)

        def at(key: Dim, column: Dim) -> Index:
            return operand_place(state, self._place(state, column), add(self.first, key), side)

        mma = self._mma(state)
        tile_of = self.keys(state.args[side], at, self.roles.columns, 1, mma)
        lanes = part.node

        def tile(memory: Node, begin: Dim, rows: int) -> Node:
            """Columns from `begin`: their sums over the panel, added to what `correct` gives."""
            column = self.loop_axis("e", rows)
            place = add(begin, column.place)
            made = self.multiply(*tile_of(0, self.size, begin, rows), lanes)
            inside = (*self.iteration, *(v for v in made.vars if "extent" in v.attrs))
            zero = constant(0, I64)
            more = self.local("more", (rows, self.tile), tuple(dict.fromkeys(inside)))
            more = self.b.store(more, made, zero, zero)

            def add_row(held: Node) -> Node:
                self.known[self.correct.params[j]] = self._reader(state, NamedTile(held))
                kept = self.value(corrected, self._place(state, place))
                total = self.apply("add", [kept, self.line(more, column.place)])
                return self.keep(held, total, place)

            return self.over(column, memory, add_row)

        made = self.in_tiles(self.roles.columns, old.node, tile, again=False, mma=mma)
        self.known[self.correct.params[j]] = _gone
        return NamedTile(made)


def _gone(index: Index) -> NamedTile:
    raise CannotTile("a state is corrected by what another one was before")
