"""Streams to kernels of blocks: one loop along the streamed axis that carries all states.

Each step computes, for the states in order, what the `states` block makes of a tile, and adds it
to the old value as `correct` gives it. Where a comparison of positions hides whole tiles, the loop
leaves them out, and where it hides nothing, the comparison is left out (`limits`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from stack.ir.axes import Index, parse_rule
from stack.ir.dim import substitute
from stack.ir.node import Node
from stack.ir.traits import fold_of, is_contraction, is_reduction
from stack.passes.blocking.branch import branched
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.limits import Segment, segments
from stack.passes.blocking.rasterization import rasterized
from stack.passes.blocking.reduce import ONCE
from stack.passes.blocking.stream_grid import GridTiler
from stack.passes.blocking.stream_lanes import loose_states
from stack.passes.blocking.stream_varying import varying
from stack.passes.blocking.values import at_place
from stack.passes.positions.assumed import Assumed, assumed
from stack.passes.positions.stream_index_maps import stream_index_maps
from stack.passes.positions.stream_operands import operand_place
from stack.passes.positions.visible import hidden, hiding_selects
from stack.passes.tiling.contraction import result_names
from stack.passes.tiling.frame import COMBINE, CannotTile, power_of_two, wide


class StreamTiler(GridTiler):
    """Builds the kernel of a stream."""

    # ---- the kernel

    def kernel(self) -> Node:
        """The kernel node of the stream. Raises CannotTile."""
        where = stream_index_maps(self.states, self.correct, self.ending)
        values, long = self._axes(where)
        at = {s: tuple(substitute(d, values) for d in p) for s, p in where.states.items()}
        final = self._stream(at)
        self.grid = rasterized(self.grid, self.along, self.met, self.gpu.cache_bytes)
        self.memo.clear()
        for param, state, held in zip(self.ending.params, self.states.results, final, strict=False):
            self.known[param] = at_place(at[state], held)
        outputs = [
            (r, tuple(substitute(d, values) for d in place))
            for r, place in zip(self.ending.results, where.results, strict=True)
        ]
        return self.finish(outputs, long)

    # ---- the loop

    def _stream(self, at: Mapping[Node, Index]) -> list[NamedTile]:
        block = min(
            power_of_two(self.extent), self.step if self.has_dot else self.reduction_loop.block
        )
        block = max(min(block, self.part & -self.part), 16 if self.has_dot else 2)
        count = -(-self.extent // block)
        if self.is_whole:
            return self.run_whole(at, block, count)
        if self.is_private:
            return self.run_private(at, block, count, self._of_part(None, block, count))
        self.loose = {} if self.has_dot else loose_states(self.states, self.correct)
        self.lane = self.axis("lane", block, block).name if self.loose else ""
        guess = assumed(self.states) if self.has_dot else None
        held = self._pass(at, block, count) if guess is None else []
        if guess is not None:
            held = self._guessed(guess, at, block, count)
        found = iter(held)
        return [self._total(next(found), found, j) for j in range(len(self.states.results))]

    def _pass(self, at: Mapping[Node, Index], block: int, count: int) -> list[NamedTile]:
        """All states after the steps that matter."""
        if self.has_dot and self.extent % block:
            self._hide_the_end()
        held = self._start(at)
        for segment in self._segments(at, block, count):
            limits = self._of_part(segment.limits, block, count)
            held = self._segment(Segment(limits, segment.fixed), held, at, block, count)
        return held

    def _start(self, at: Mapping[Node, Index]) -> list[NamedTile]:
        """All states before the first element."""
        held: list[NamedTile] = []
        along = varying(self.states, self.correct)
        for j, state in enumerate(self.states.results):
            kind = fold_of(state)
            dims = [at[state][i] for i in along[state]]
            axes = self.union([NamedTile(state, tuple(self.tile_axes(d))) for d in dims])
            start = self.identity(kind, wide(state.dtype))
            held.append(NamedTile(self.spread(start, axes), axes))
            if j in self.loose:
                lanes = (*axes, self.lane)
                held.append(NamedTile(self.spread(start, lanes), lanes))
        return held

    def _guessed(
        self, guess: Assumed, at: Mapping[Node, Index], block: int, count: int
    ) -> list[NamedTile]:
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
        iterations = (self.int(0).node, self.fails(guess, held))

        def again(iteration: Node, carried: list[NamedTile]) -> list[NamedTile]:
            if self.extent % block:
                self._hide_the_end()
            # from the iteration on: what does not depend on it is not in the branch
            limits = self._of_part((iteration, self.int(count).node), block, count)
            return self._segment(Segment(limits), self._start(at), at, block, count, ahead=1)

        return self.steps(1, held, again, "iteration", iterations, kind="branch")

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
        begin = self.apply("max", [first, NamedTile(limits[0])])
        return begin.node, self.apply("min", [end, NamedTile(limits[1])]).node

    def _value(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        if node in self.hiding and self.streamed and guard is None:
            made = branched(self, node, self.hiding[node], index, self.axes[self.streamed])
            if made is not None:
                return made
        return super()._value(node, index, guard)

    def _total(self, held: NamedTile, rest: Iterator[NamedTile], j: int) -> NamedTile:
        """A state after the pass, its places added up."""
        if j not in self.loose:
            return held
        lanes = self.fold(next(rest), "sum", [self.lane])
        return self.apply("add", [held, lanes]) if self.loose[j].addend is not None else lanes

    def _segment(
        self,
        segment: Segment,
        held: Sequence[NamedTile],
        at: Mapping[Node, Index],
        block: int,
        count: int,
        ahead: int = 0,
    ) -> list[NamedTile]:
        """All states after a run of steps; `ahead` as for `steps`."""

        def body(var: Node, carried: list[NamedTile]) -> list[NamedTile]:
            self.memo.clear()
            self.known.clear()
            axis = self.axis("k", self.extent, block, self.begin(var, block))
            self.streamed = axis.name
            n = len(self.states.results)
            slots = iter(carried)
            old: list[NamedTile] = []
            lanes: dict[int, NamedTile] = {}
            for j in range(n):
                old.append(next(slots))
                if j in self.loose:
                    lanes[j] = next(slots)
            new: list[NamedTile] = []
            for j, state in enumerate(self.states.results):
                place = at[state]
                self.known[self.correct.params[j]] = at_place(place, old[j])
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
                kind = fold_of(state)
                part = NamedTile(self.spread(part, old[j].axes), old[j].axes)
                made = self.apply(COMBINE[kind], [kept, part])
                made = NamedTile(self.spread(made, old[j].axes), old[j].axes)
                new.append(made)
                self.known[state] = at_place(place, made)
                self.known[self.correct.params[n + j]] = at_place(place, made)
            return new

        names = [
            name
            for j in range(len(self.states.results))
            for name in ([f"s{j}_", f"lanes{j}_"] if j in self.loose else [f"s{j}_"])
        ]
        ahead = ahead if self.has_dot else self.reduction_loop.ahead
        if self.reduction_loop.is_first and len(self.loose) < len(self.states.results):
            ahead = ONCE.ahead  # steps wait for each other: memory should not
        made = self.first_loop(count, held, body, names, ahead, segment.limits, staged=True)
        self.memo.clear()
        self.known.clear()
        return made

    def _hide_the_end(self) -> None:
        """Find one value that hides the places past the end from all states."""
        for state in self.states.results:
            if is_reduction(state) and state.attrs["kind"] == "max":
                found = hidden(self.states, state.args[0], -math.inf)
                if found is not None and state.dtype.is_float:
                    self.lowest, self.nothing = state.args[0], found

    def value(self, node: Node, index: Index, guard: NamedTile | None = None) -> NamedTile:
        made = super().value(node, index, guard)
        if node is not self.lowest:
            return made
        return super().masked(made, "max", [self.streamed])

    def is_nothing(self, node: Node) -> bool:
        return node in self.nothing

    def _partial(self, state: Node, place: Index, k: str) -> NamedTile:
        """A state over one tile of the streamed axis."""
        axis = self.axes[k]
        if is_contraction(state):
            index = dict(zip(result_names(state), place, strict=True))
            index[parse_rule(state.attrs["rule"]).reduced[0]] = axis.place
            return self.product(state, index, axis, None)
        fold = self.folded if self.is_nothing(state.args[0]) else self.fold
        return fold(self._places(state, place, axis), str(state.attrs["kind"]), [k])

    def _places(self, state: Node, place: Index, axis: Axis) -> NamedTile:
        """What a state reduces, on one tile of the streamed axis."""
        value = self.value(state.args[0], operand_place(state, place, axis.place))
        return self.spread_over(value, [axis])

    def _loose_step(
        self, j: int, old: NamedTile, lanes: NamedTile, place: Index, axis: Axis
    ) -> tuple[NamedTile, NamedTile]:
        """The next values of a sum that is kept place by place: what is added at once, the rest."""
        loose, state = self.loose[j], self.states.results[j]
        names = [axis.name] if axis.is_tile else []
        value = self.masked(self._places(state, place, axis), "sum", names)
        value = NamedTile(self.spread(value, [*old.axes, *names]), lanes.axes)
        if loose.factor is not None:
            lanes = self.apply("mul", [lanes, self.value(loose.factor, place)])
        made = old
        if loose.addend is not None:
            made = self.value(self.correct.results[j], place)
            made = NamedTile(self.spread(made, old.axes), old.axes)
        return made, self.apply("add", [lanes, value])
