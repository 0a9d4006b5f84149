"""Streams without a product on a GPU: a block of threads for each row, which reads it once.

A thread keeps states of its own. At every step it takes a few vectors of the row, computes their
part of each state, and adds it to what `correct` makes of the old one. The states of the lanes of a
warp, then those of the warps, are merged in the same way: each is corrected to the common value of
those that it depends on, and the corrected ones are reduced, by shuffles and in shared memory.
A result as long as the row takes a second walk over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir.axes import Index
from stack.ir.dim import Dim, add, bounds, mul, substitute, symbols
from stack.ir.node import Block, Node
from stack.ir.stream_op import streamed_axes
from stack.ir.types import TensorType
from stack.ir.warp_ops import VECTOR_BYTES, WARP
from stack.passes.blocking.frame import Held
from stack.passes.blocking.stream_places import stream_places
from stack.passes.blocking.values import at_place
from stack.passes.exact_tiling.stream_values import StreamValues
from stack.passes.gpu_loops.frame import Threads
from stack.passes.tiling.frame import COMBINE, CannotTile, wide

MOST_LANES = 8  # elements of a vector
STEP_BYTES = 64  # that a thread has under way: what a step reads of the longest array
MOST_VECTORS = 16  # of a step
MOST_WARPS = 16


class WarpStream(StreamValues):
    """Builds the kernel of a stream at the loop level of a GPU."""

    def __init__(self, stream: Node) -> None:
        super().__init__(stream)
        if any(n.op == "dot" for n in self.states.nodes):
            raise CannotTile("it has a product")
        if "part" in stream.attrs:
            raise CannotTile("it is one part of several")
        self.placed = stream_places(*stream.blocks)
        self.rows: list[tuple[str, int]] = []  # marks of the states, and their sizes
        self.marks: dict[str, Dim] = {}  # mark -> its place in the kernel
        self.streamed = ""  # mark of the streamed axis, where a result has it
        kept = {s.name for p in self.placed.states.values() for d in p for s in symbols(d)}
        for mark in self.placed.marks:
            name, size = str(mark), bounds(mark)[1] + 1
            if size == 1:
                self.marks[name] = 0
            elif name in kept:
                self.rows.append((name, size))
            elif size == self.extent and not self.streamed:
                self.streamed = name
            else:
                raise CannotTile("two axes of its result are not those of its states")
        self.lanes = self._lanes()
        vectors = self.extent // self.lanes
        size = self.lanes * max(n.dtype.bytes for n in self._long())
        self.turns = max(1, min(MOST_VECTORS, STEP_BYTES // size))  # vectors of a step
        self.warps = min(MOST_WARPS, -(-vectors // (WARP * self.turns)))
        self.width = self.warps * WARP  # vectors of all threads

    def _lanes(self) -> int:
        lanes = min(MOST_LANES, VECTOR_BYTES // min(n.dtype.bytes for n in self._long()))
        while self.extent % lanes:
            lanes //= 2
        return lanes

    def _long(self) -> list[Node]:
        """Arrays that may be as long as the row."""
        arrays = [*self.states.params, *self.ending.results]
        return [n for n in arrays if self.extent in n.shape] or arrays

    # ---- the kernel

    def kernel(self) -> Node:
        """The kernel node of the stream. Raises CannotTile."""
        params, outputs = list(dict.fromkeys(self.inputs.values())), self.outputs()
        self.t = t = Threads(Block([*params, *outputs], outputs))
        self.b = t.b
        self.vector = self.axis("t", self.lanes, self.lanes)
        count = math.prod(size for _, size in self.rows)

        def program(step: Node, held: list[Node]) -> list[Node]:
            self._place_rows(step, count)
            shared = t.over_warps(self.warps, self._shared(), self._warp)
            totals = self._merge(shared, self.warps)
            return self._results(totals, held)

        block = t.kernel(count, program)
        attrs = {
            "name": str(self.group.attrs.get("name") or "kernel"),
            "level": "loop",
            "ops": self._ops(),
        }
        return Node("kernel", self.args, attrs, self.group.type, (block,))

    def _place_rows(self, step: Node, count: int) -> None:
        """Where the states of a block of threads sit."""
        rest = step
        for name, size in reversed(self.rows):
            count //= size
            row = self.b.rem(rest, size) if count > 1 else rest
            rest = self.b.div(rest, size) if count > 1 else self.t.int(0)
            self.marks[name] = self.data_symbol(Held(row), size)

    def _place(self, state: Node) -> Index:
        return tuple(substitute(d, self.marks) for d in self.placed.states[state])

    def _kind(self, state: Node) -> str:
        return str(state.attrs["kind"])

    def _identity(self, state: Node) -> Held:
        return self.identity(self._kind(state), wide(state.dtype))

    def _shared(self) -> list[Node]:
        states = self.states.results
        return [self.t.memory("shared", "state", wide(s.dtype), self.warps) for s in states]

    # ---- merging

    def _corrected(self, j: int, old: Sequence[Held], new: Sequence[Held]) -> Held:
        """State `j` of `old` as it would be with the new values before it."""
        self.memo.clear()
        self.known.clear()
        states = self.states.results
        for i, state in enumerate(states):
            place = self._place(state)
            self.known[self.correct.params[i]] = at_place(place, old[i])
            if i < len(new):
                self.known[self.correct.params[len(states) + i]] = at_place(place, new[i])
        return self.value(self.correct.results[j], self._place(states[j]))

    def _merge(self, memories: Sequence[Node], count: int, *place: Node) -> list[Held]:
        """One list of states from `count` of them that lie in a line of memory."""
        axis = self.axis("state", count, max(2, count))
        old: list[Held] = []
        for state, memory in zip(self.states.results, memories, strict=True):
            line = TensorType(wide(state.dtype), (count,), "tile")
            old.append(Held(self.b.load(memory, *place, self.t.int(0), type=line), (axis.name,)))
        new: list[Held] = []
        for j, state in enumerate(self.states.results):
            corrected = self._corrected(j, old, new)
            new.append(self.folded(corrected, self._kind(state), [axis.name]))
        return new

    def _warp(self, shared: list[Node]) -> list[Node]:
        """The states of one warp, in its place of shared memory."""
        t, states = self.t, self.states.results
        size = int(t.warp.attrs["extent"])
        parts = [t.memory("local", "part", wide(s.dtype), size, WARP) for s in states]

        def lane(held: list[Node]) -> list[Node]:
            found = self._thread()
            return [
                self.b.store(m, v.node, t.warp, t.lane) for m, v in zip(held, found, strict=True)
            ]

        found = self._merge(t.over_lanes(parts, lane), WARP, t.warp)
        return [self.b.store(m, v.node, t.warp) for m, v in zip(shared, found, strict=True)]

    # ---- one thread

    def _thread(self) -> list[Held]:
        """The states of what one thread reads."""
        held = [self._identity(s) for s in self.states.results]
        vectors = self.extent // self.lanes
        full, rest = divmod(vectors, self.width * self.turns)
        if full:
            steps = self.loop_axis("c", full)
            first = mul(steps.place, self.width * self.turns)

            def body(var: Node, old: list[Held]) -> list[Held]:
                return self._step(old, first, self.turns)

            held = self.along(steps, held, body, "held")
        if rest:
            turns = -(-rest // self.width)
            held = self._step(held, full * self.width * self.turns, turns)
        return held

    def _vector(self, first: Dim, turn: int) -> tuple[Dim, Held | None]:
        """A vector's place in the row, and whether it is there at all."""
        t = self.t
        thread = Held(self.b.add(t.times(t.warp, WARP), t.lane))
        place = add(add(first, turn * self.width), self.data_symbol(thread, self.width))
        vectors = self.extent // self.lanes
        if bounds(place)[1] < vectors:
            return mul(place, self.lanes), None
        number = self.number(place)
        clamped = self.apply("min", [number, self.int(vectors - 1)])
        inside = self.apply("lt", [number, self.int(vectors)])
        return mul(self.data_symbol(clamped, vectors), self.lanes), inside

    def _step(self, old: list[Held], first: Dim, turns: int) -> list[Held]:
        """The states after a few more vectors."""
        places = [self._vector(first, turn) for turn in range(turns)]
        new: list[Held] = []
        for j, state in enumerate(self.states.results):
            corrected = self._corrected(j, old, new)
            for i, earlier in enumerate(self.states.results[:j]):
                self.known[earlier] = at_place(self._place(earlier), new[i])
            part = self._part(state, places)
            new.append(self.apply(COMBINE[self._kind(state)], [corrected, part]))
        return new

    def _part(self, state: Node, places: Sequence[tuple[Dim, Held | None]]) -> Held:
        kind, place = self._kind(state), self._place(state)
        ((operand, axis),) = streamed_axes(state)
        total: Held | None = None
        for start, inside in places:
            at = (*place[:axis], add(start, self.vector.place), *place[axis:])
            value = self.spread_over(self.value(operand, at), [self.vector])
            if inside is not None:
                value = self.apply("select", [inside, value, self._identity(state)])
            total = value if total is None else self.apply(COMBINE[kind], [total, value])
        assert total is not None
        return self.folded(total, kind, total.axes)

    # ---- results

    def _results(self, totals: Sequence[Held], held: list[Node]) -> list[Node]:
        self.memo.clear()
        self.known.clear()
        states = self.states.results
        for param, state, total in zip(self.ending.params, states, totals, strict=False):
            self.known[param] = at_place(self._place(state), total)
        places = self.placed.results
        long = [self.streamed in {s.name for d in p for s in symbols(d)} for p in places]
        return [
            self._row(result, memory, place) if is_long else self._single(result, memory, place)
            for result, memory, place, is_long in zip(
                self.ending.results, held, places, long, strict=True
            )
        ]

    def _single(self, result: Node, memory: Node, place: Index) -> Node:
        """A result that is one number in a row: one lane stores it."""
        at = tuple(substitute(d, self.marks) for d in place)
        value = self.value(result, at)

        def lane(held: list[Node]) -> list[Node]:
            return [self.store(held[0], value, at)]

        return self.t.over_warps(1, [memory], lambda m: self.t.over_lanes(m, lane, 1))[0]

    def _row(self, result: Node, memory: Node, place: Index) -> Node:
        """A result as long as the row: a second walk."""
        vectors = self.extent // self.lanes
        full, rest = divmod(vectors, self.width * self.turns)

        def put(held: Node, first: Dim, turns: int) -> Node:
            self.memo.clear()
            values: list[tuple[Held, Index]] = []
            for turn in range(turns):  # all are read before one is written
                start, _ = self._vector(first, turn)
                marks = {**self.marks, self.streamed: add(start, self.vector.place)}
                at = tuple(substitute(d, marks) for d in place)
                value = self.cast(self.value(result, at), result.dtype)
                values.append((value, at))
            for value, at in values:
                held = self.store(held, value, at)
            return held

        def lane(held: list[Node]) -> list[Node]:
            if full:
                steps = self.loop_axis("c", full)
                first = mul(steps.place, self.width * self.turns)

                def body(var: Node, old: list[Held]) -> list[Held]:
                    return [Held(put(old[0].node, first, self.turns))]

                (made,) = self.along(steps, [Held(held[0])], body, "held")
                held = [made.node]
            if rest:
                turns = -(-rest // self.width)
                held = [put(held[0], full * self.width * self.turns, turns)]
            return held

        return self.t.over_warps(self.warps, [memory], lambda m: self.t.over_lanes(m, lane))[0]
