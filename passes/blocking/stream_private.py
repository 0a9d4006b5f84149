"""Streams whose places of a step are streams of their own, merged after the pass.

Where the summands of later states follow earlier ones, as those of a variance do a running mean,
each step would wait for a reduction over its tile. Parts of a stream merge by its `correct` block,
so every place of a step may run by itself: nothing is reduced before the end. That pays where the
correction is cheap, as each element is corrected on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.node import Node, topological
from stack.ir.traits import is_constant, is_contraction, is_reduction, repeats
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.stream_lanes import loose_states
from stack.passes.blocking.stream_states import StreamStates
from stack.passes.blocking.tiler import BlockTiler
from stack.passes.blocking.values import at_place
from stack.passes.positions.stream_operands import operand_place
from stack.passes.tiling.frame import COMBINE, is_expensive, wide


def is_lane_private(stream: Node) -> bool:
    """Whether the places of a step run by themselves."""
    states, correct, _ = stream.blocks
    if any(map(is_contraction, states.nodes)) or any(map(is_expensive, correct.nodes)):
        return False
    if any(not is_reduction(s) or not s.dtype.is_float for s in states.results):
        return False
    return len(loose_states(states, correct)) < len(states.results)


class PrivateTiler(StreamStates, BlockTiler):
    """Builds the loop of such a stream."""

    is_private = False

    def apply(
        self, op: str, args: Sequence[NamedTile], attrs: dict[str, object] | None = None
    ) -> NamedTile:
        """As for all kernels; by a number of a step, one division for all its places."""
        if op == "div" and self.is_private and args[0].axes and not args[1].axes:
            if args[0].dtype.is_float:
                one = NamedTile(constant(1.0, args[1].dtype))
                return super().apply("mul", [args[0], super().apply("div", [one, args[1]])])
        return super().apply(op, args, attrs)

    def run_private(
        self,
        at: Mapping[Node, Index],
        block: int,
        count: int,
        limits: tuple[Node, Node] | None = None,
    ) -> list[NamedTile]:
        """The states after the pass, from where they sit, and the places of a step."""
        results = self.states.results
        lane = self.axis("lane", block, block).name
        alike = [self.extent % block == 0 and is_alike(s) for s in results]
        start: list[NamedTile] = []
        for state, same in zip(results, alike, strict=True):
            axes = self.union([NamedTile(state, tuple(self.tile_axes(d))) for d in at[state]])
            axes = axes if same else (*axes, lane)
            fill = self.identity(str(state.attrs["kind"]), wide(state.dtype))
            start.append(NamedTile(self.spread(fill, axes), axes))

        def body(var: Node, carried: list[NamedTile]) -> list[NamedTile]:
            axis = self.axis("k", self.extent, block, self.begin(var, block))
            old = [_renamed(c, lane, axis.name) for c in carried]
            new = self._step(at, axis, old, alike)
            return [_renamed(h, axis.name, lane) for h in new]

        names = [f"s{j}_" for j in range(len(results))]
        found = self.first_loop(count, start, body, names, self.reduction_loop.ahead, limits, True)
        return self._merged(at, found, self.axes[lane])

    def _step(
        self, at: Mapping[Node, Index], axis: Axis, old: Sequence[NamedTile], alike: Sequence[bool]
    ) -> list[NamedTile]:
        """The states of all places with one more element each."""
        self._know(at, old)
        new: list[NamedTile] = []
        for j, state in enumerate(self.states.results):
            kind = str(state.attrs["kind"])
            value = self.value(state.args[0], operand_place(state, at[state], axis.place))
            if not alike[j]:
                value = self.masked(self.spread_over(value, [axis]), kind, [axis.name])
            made = self.apply(
                COMBINE[kind], [self.value(self.correct.results[j], at[state]), value]
            )
            new.append(NamedTile(self.spread(made, old[j].axes), old[j].axes))
            self.known[state] = at_place(at[state], new[j])
            self.known[self.correct.params[len(old) + j]] = at_place(at[state], new[j])
        return new

    def _merged(
        self, at: Mapping[Node, Index], held: Sequence[NamedTile], lane: Axis
    ) -> list[NamedTile]:
        """The states of all places as one."""
        self._know(at, held)
        total: list[NamedTile] = []
        for j, state in enumerate(self.states.results):
            value = self.spread_over(self.value(self.correct.results[j], at[state]), [lane])
            total.append(self.fold(value, str(state.attrs["kind"]), [lane.name]))
            self.known[self.correct.params[len(held) + j]] = at_place(at[state], total[j])
        self.memo.clear()
        self.known.clear()
        return total

    def _know(self, at: Mapping[Node, Index], old: Sequence[NamedTile]) -> None:
        """Start over with these as the states to correct."""
        self.memo.clear()
        self.known.clear()
        for param, state, held in zip(self.correct.params, self.states.results, old, strict=False):
            self.known[param] = at_place(at[state], held)


def is_alike(state: Node) -> bool:
    """Whether a state is the same at all places: a count."""
    return all(is_constant(n) or repeats(n) or is_reduction(n) for n in topological([state]))


def _renamed(held: NamedTile, old: str, new: str) -> NamedTile:
    return NamedTile(held.node, tuple(new if n == old else n for n in held.axes))


__all__ = ["PrivateTiler", "is_alike", "is_lane_private"]
