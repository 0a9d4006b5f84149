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

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, Expr, add, bounds, minimum, mul, substitute, symbol
from stack.ir.node import Node, deps, topological
from stack.ir.space import identity
from stack.ir.stream_op import streamed_axes
from stack.ir.types import F32, I64, TensorType
from stack.passes.blocking.limits import Segment, segments
from stack.passes.exact_tiling.stream_axes import StreamAxes
from stack.passes.exact_tiling.stream_limits import RowFrame
from stack.passes.exact_tiling.stream_results import StreamResults
from stack.passes.exact_tiling.stream_values import Reader
from stack.passes.positions.assumed import Assumed, assumed
from stack.passes.tiling.frame import COMBINE, CannotTile, wide
from stack.target import Target, as_cpu

DEAR = 8  # operations on an element from which a value is kept from one sweep to the next
PANEL = 128  # keys of a panel: its products stay in the first two levels of cache
VECTORS = (4, 2, 1)  # registers that hold the rows of a program


class StreamTiler(StreamResults):
    """Builds the kernel of a stream with a product in it.

    Args:
        step: keys of a panel; 0 picks them.
        target: the CPU.
    """

    def __init__(self, stream: Node, step: int = 0, target: Target | None = None) -> None:
        super().__init__(stream)
        self.cpu = as_cpu(target)
        if any(wide(s.dtype) != F32 for s in self.states.results):
            raise CannotTile("a state is not held in f32")
        self.axes = StreamAxes(stream, self.inputs)
        self.step = min(step or _panel(self.extent), self.extent)
        self.levels = self._levels()

    # ---- the kernel

    def kernel(self) -> Node:
        """The kernel node of the stream. Raises CannotTile."""
        grid = self._grid()
        self.programs = math.prod(count for _, count in grid)
        self.program = tuple(self.nodes[name] for name, _ in grid)
        outputs = self.outputs()

        def program(memories: Sequence[Node]) -> list[Node]:
            final = self._stream()
            self.memo.clear()
            self.known.clear()
            for param, state, held in zip(self.ending.params, self.states.results, final):
                self.known[param] = self._reader(state, held)
            return [
                self._store_rows(result, memory, place)
                for result, memory, place in zip(
                    self.ending.results, memories, self.axes.placed.results, strict=True
                )
            ]

        return self.finish(self.in_grid(grid, outputs, program))

    def _grid(self) -> list[tuple[str, int]]:
        """What each mark is in the kernel."""
        row, sizes = self.axes.row, self.axes.sizes
        if any(size > 1 and name not in self.axes.kept for name, size in sizes.items()):
            raise CannotTile("a result is as long as the streamed axis")
        lanes = [v * self.cpu.lanes for v in VECTORS]
        self.tile = next((t for t in lanes if row and t <= sizes[row]), 0)
        if not self.tile:
            raise CannotTile(f"it has fewer than {lanes[-1]} rows, which a register holds")
        grid: list[tuple[str, int]] = []
        names = iter("ghijkl")
        for name, size in sizes.items():
            if name in (self.axes.column, row):
                continue
            self.values[name] = 0
            if size > 1:
                made = self.variable(next(names, "l"), size)
                grid.append((str(made), size))
                self.values[name] = made
        count = -(-sizes[row] // self.tile)
        begin: Dim = 0
        if count > 1:
            made = self.variable(next(names, "l"), count)
            grid.append((str(made), count))
            begin = mul(made, self.tile)
            if sizes[row] % self.tile:  # the last rows start early rather than end late
                begin = minimum(begin, sizes[row] - self.tile)
        self.begin = begin
        iota = self.b.iota(axis=0, type=TensorType(I64, (self.tile,), "tile"))
        self.nodes["t"] = iota
        self.tile_symbols.add("t")
        self.tile_dim = symbol("t", 0, self.tile - 1)
        self.values[row] = add(begin, self.tile_dim)
        return grid

    def _levels(self) -> list[list[int]]:
        """States by how many others they wait for."""
        depth: dict[Node, int] = {}
        for state in self.states.results:
            pending, seen = list(state.args), set[Node]()
            depth[state] = 0
            while pending:
                node = pending.pop()
                if node in depth:
                    depth[state] = max(depth[state], depth[node] + 1)
                elif node not in seen:
                    seen.add(node)
                    pending.extend(deps(node))
        found: list[list[int]] = [[] for _ in range(max(depth.values()) + 1)]
        for i, state in enumerate(self.states.results):
            found[depth[state]].append(i)
        return found

    def _place(self, state: Node, column: Dim = 0) -> Index:
        """Where a state sits; wide ones at one column."""
        values = {**self.values, self.axes.column: column} if self.axes.column else self.values
        return tuple(substitute(d, values) for d in self.axes.placed.states[state])

    def _is_wide(self, state: Node) -> bool:
        return state in self.axes.wide

    def _reader(self, state: Node, held: Node) -> Reader:
        """How a state is read: from registers, or a row of memory."""
        here = self.axes.placed.states[state]
        at = [i for i, d in enumerate(here) if str(d) == self.axes.column]

        def read(index: Index) -> Node:
            column = index[at[0]] if at else 0
            if index != self._place(state, column):
                raise CannotTile("a state is read at a computed index")
            return self.line(held, column) if at else held

        return read

    # ---- the loop over panels

    def _stream(self) -> list[Node]:
        shape = (self.axes.columns, self.tile)
        memories = [
            self.local("sums", shape, self.program) if self._is_wide(s) else None
            for s in self.states.results
        ]
        guess = assumed(self.states)
        if guess is None:
            return self._pass(self._start(memories), self._segments())
        states, axes = self.states, self.axes
        self.states = guess.states
        blocks = (guess.states, self.correct, self.ending)
        self.axes = StreamAxes(
            Node("stream", self.group.args, self.group.attrs, self.group.type, blocks), self.inputs
        )
        found = self._segments()
        helps = any(segment.limits for segment in found)
        held = self._pass(self._start(memories), found) if helps else []
        self.states, self.axes = states, axes
        return (
            self._unless(guess, held) if helps else self._pass(self._start(memories), [Segment()])
        )

    def _unless(self, guess: Assumed, held: list[Node]) -> list[Node]:
        """All states, computed again as they are written where some row tells against a guess."""
        wrong: Node | None = None
        for j, floor in guess.floors.items():
            least = self.b.reduce(held[j], kind="min", axes=(0,))
            holds = self.b.gt(least, constant(floor, least.dtype))
            found = self.b.select(holds, constant(0, I64), constant(1, I64))
            wrong = found if wrong is None else self.b.max(wrong, found)
        assert wrong is not None
        once = self.variable("g", 1)
        # from its turn on: what does not depend on that is not inside
        whole = Segment((self.nodes[str(once)], constant(self.extent // self.step, I64)))
        limits = (constant(0, I64), wrong)
        return self.over(once, held, lambda old: self._pass(self._start(old), [whole]), limits)

    def _pass(self, held: list[Node], segments: Sequence[Segment]) -> list[Node]:
        """All states after runs of panels, and what is left behind them."""
        count, rest = divmod(self.extent, self.step)
        for segment in segments:
            held = self._segment(segment, held, count)
        if rest:
            held = self._panel(count * self.step, rest, held, Segment())
        return held

    def _start(self, memories: Sequence[Node | None]) -> list[Node]:
        """All states before the first element; wide ones in memories."""
        held: list[Node] = []
        for state, memory in zip(self.states.results, memories, strict=True):
            kind = "sum" if state.op == "dot" else str(state.attrs["kind"])
            start = constant(identity(kind, wide(state.dtype)), wide(state.dtype))
            if memory is None or not self._is_wide(state):
                held.append(self.splat(start))
                continue
            step = self.variable("e", self.axes.columns)

            def fill(m: list[Node], start: Node = start, step: Expr = step) -> list[Node]:
                return [self.keep(m[0], start, step)]

            held += self.over(step, [memory], fill)
        return held

    def _segments(self) -> list[Segment]:
        """Runs of panels that a comparison of positions leaves."""
        count = self.extent // self.step
        frame = RowFrame(self.states, self.b, lambda node, index: self.value(node, index, None))
        values: dict[str, Dim] = {}
        for mark in self.axes.placed.marks:
            name, size = str(mark), bounds(mark)[1] + 1
            if name == self.axes.row:
                start = self.number(self.begin)
                values[name] = frame.enter(self.values[name], size, self.tile, start)
            elif name == self.axes.column or size == 1:
                values[name] = mark if size > 1 else 0
            else:
                start = self.number(self.values[name])
                values[name] = frame.enter(self.values[name], size, 1, start)
        at = {
            state: tuple(substitute(d, values) for d in place)
            for state, place in self.axes.placed.states.items()
        }
        return segments(frame, self.states, at, self.step, count)

    def _segment(self, segment: Segment, held: list[Node], count: int) -> list[Node]:
        if count == 1 and segment.limits is None:
            return self._panel(0, self.step, held, segment)
        var = self.variable("p", count)

        def body(old: list[Node]) -> list[Node]:
            return self._panel(mul(var, self.step), self.step, old, segment, self.nodes[str(var)])

        return self.over(var, held, body, segment.limits or ())

    def _panel(
        self, first: Dim, size: int, old: list[Node], segment: Segment, *inside: Node
    ) -> list[Node]:
        """The states after one more panel of keys."""
        self.first, self.size = first, size
        self.turn = (*self.program, *inside)
        self.memo.clear()
        self.known.clear()
        self.scores.clear()
        self.panels.clear()
        for select, source in segment.fixed.items():
            self.known[select] = lambda index, source=source: self.value(source, index, None)
        states, n = self.states.results, len(self.states.results)
        for j, state in enumerate(states):
            self.known[self.correct.params[j]] = self._reader(state, old[j])
        new = list(old)
        for level in self.levels:
            parts = self._sweep([states[j] for j in level], self._dear(level))
            for j in level:
                state = states[j]
                new[j] = self._merged(j, old[j], parts[state])
                self.known[state] = self._reader(state, new[j])
                self.known[self.correct.params[n + j]] = self._reader(state, new[j])
        return new

    # ---- one panel

    def _dear(self, level: Sequence[int]) -> list[Node]:
        """What a sweep reduces that is dear, and that a later one computes again."""
        states = [self.states.results[j] for j in level]
        if level is self.levels[-1]:
            return []
        found = [s.args[0] for s in states if s.op == "reduce"]
        return [n for n in dict.fromkeys(found) if any(map(_is_dear, topological([n])))]

    def _sweep(self, states: Sequence[Node], dear: Sequence[Node]) -> dict[Node, Node]:
        """For each state its part of the panel; of a wide one, what the columns multiply.

        Values of `dear` are kept for later sweeps.
        """
        self.key = self.variable("k", self.size)
        key = add(self.first, self.key)
        init: list[Node] = []
        values: list[Callable[[], Node]] = []
        kinds: list[str] = []
        for state in states:
            if self._is_wide(state):
                side = 1 - self.axes.side(state)
                index = self._operand_index(state, side, key, 0)
                values.append(lambda s=state.args[side], i=index: self.value(s, i, None))
                init.append(self.local("weights", (self.size, self.tile), self.turn))
                kinds.append("")
            else:
                kind = "sum" if state.op == "dot" else str(state.attrs["kind"])
                values.append(lambda s=state: self._term(s, key))
                init.append(
                    self.splat(constant(identity(kind, wide(state.dtype)), wide(state.dtype)))
                )
                kinds.append(COMBINE[kind])
        places: list[Index] = []
        for node in dear:
            state = next(s for s in states if s.args[0] is node)
            axis = streamed_axes(state)[0][1]
            place = self._place(state)
            places.append((*place[:axis], key, *place[axis:]))
            values.append(lambda n=node, i=places[-1]: self.value(n, i, None))
            init.append(self.local("kept", (self.size, self.tile), self.turn, wide(node.dtype)))
            kinds.append("")

        def body(held: list[Node]) -> list[Node]:
            made = [self.as_tile(value()) for value in values]
            return [
                self.b.op(kind, [h, m]) if kind else self.keep(h, m, self.key)
                for kind, h, m in zip(kinds, held, made, strict=True)
            ]

        made = self.over(self.key, init, body)
        for node, place, memory in zip(dear, places, made[len(states) :], strict=True):
            self.known[node] = self._kept(node, place, memory)
        return dict(zip(states, made, strict=False))

    def _kept(self, node: Node, place: Index, memory: Node) -> Reader:
        """How a value of an earlier sweep is read: from memory where that is at the same place."""
        base = tuple(substitute(d, {str(self.key): 0}) for d in place)

        def read(index: Index) -> Node:
            if tuple(substitute(d, {str(self.key): 0}) for d in index) == base:
                return self.line(memory, self.key)
            return self.computed(node, index)

        return read

    def _term(self, state: Node, key: Dim) -> Node:
        """What one key adds to a state in registers."""
        place = self._place(state)
        if state.op == "reduce":
            ((operand, axis),) = streamed_axes(state)
            return self.value(operand, (*place[:axis], key, *place[axis:]), None)
        parts = [
            self.value(arg, self._operand_index(state, side, key, 0), None)
            for side, arg in enumerate(state.args)
        ]
        return self.b.mul(parts[0], parts[1])

    def _operand_index(self, state: Node, side: int, key: Dim, column: Dim) -> Index:
        """Where an operand of a dot is read at a key."""
        rule = parse_rule(state.attrs["rule"])
        place = self._place(state, column)
        found = {a.names[0]: d for a, d in zip(rule.outputs[0], place, strict=True)}
        found[rule.reduced[0]] = key
        return tuple(found[a.names[0]] for a in rule.inputs[side])

    def _merged(self, j: int, old: Node, part: Node) -> Node:
        """A state after a panel."""
        state, corrected = self.states.results[j], self.correct.results[j]
        if not self._is_wide(state):
            kind = "sum" if state.op == "dot" else str(state.attrs["kind"])
            kept = self.value(corrected, self._place(state), None)
            return self.as_tile(self.b.op(COMBINE[kind], [kept, part]))
        side = self.axes.side(state)

        def at(key: Dim, column: Dim) -> Index:
            return self._operand_index(state, side, add(self.first, key), column)

        tile_of = self.keys(state.args[side], at, self.axes.columns, 1)

        def tile(memory: Node, begin: Dim, rows: int) -> Node:
            """Columns from `begin`: their sums over the panel, added to what `correct` gives."""
            column = self.variable("e", rows)
            place = add(begin, column)
            made = self.multiply(*tile_of(0, self.size, begin, rows), part)
            inside = (*self.turn, *(v for v in made.vars if "extent" in v.attrs))
            zero = constant(0, I64)
            more = self.local("more", (rows, self.tile), tuple(dict.fromkeys(inside)))
            more = self.b.store(more, made, zero, zero)

            def add_row(held: list[Node]) -> list[Node]:
                self.known[self.correct.params[j]] = self._reader(state, held[0])
                kept = self.value(corrected, self._place(state, place), None)
                return [self.keep(held[0], self.b.add(kept, self.line(more, column)), place)]

            return self.over(column, [memory], add_row)[0]

        made = self.in_tiles(self.axes.columns, old, tile, again=False)
        self.known[self.correct.params[j]] = _gone
        return made


def _is_dear(node: Node) -> bool:
    op = ops.lookup(node.op)
    return op.kind == "elementwise" and op.flops >= DEAR


def _gone(index: Index) -> Node:
    raise CannotTile("a state is corrected by what another one was before")


def _panel(extent: int) -> int:
    """Keys of a panel: a divisor of all keys where there is one near."""
    near = [s for s in range(PANEL // 2, PANEL + PANEL // 2 + 1) if extent % s == 0]
    return min(near, key=lambda s: abs(s - PANEL), default=PANEL)
