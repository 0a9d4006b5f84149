"""Streams whose rows a program holds: nothing runs ahead of what it needs, so nothing is corrected.

A stream corrects its states because it sees each element once. Where all tiles of a row stay in
registers, each state is reduced with the final values of those that it reads, as the source says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.node import Node
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.stream_private import PrivateTiler, is_alike
from stack.passes.blocking.values import at_place
from stack.passes.positions.stream_operands import operand_place
from stack.passes.tiling.frame import COMBINE, wide


class WholeTiler(PrivateTiler):
    """Builds the loops of such a stream: one over the row for each level of its states."""

    is_whole = False

    def run_whole(self, at: Mapping[Node, Index], block: int, count: int) -> list[NamedTile]:
        """The states of a row, from where they sit."""
        lane = self.axis("lane", block, block).name
        total: dict[Node, NamedTile] = {}
        for number, positions in enumerate(self.levels()):
            level = [self.states.results[j] for j in positions]
            alike = [s for s in level if s.attrs["kind"] == "sum" and is_alike(s)]
            states = [s for s in level if s not in alike]
            total.update({s: self._counted(s, at) for s in alike})
            start: list[NamedTile] = []
            for state in states:
                axes = (
                    *self.union([NamedTile(state, tuple(self.tile_axes(d))) for d in at[state]]),
                    lane,
                )
                fill = self.identity(str(state.attrs["kind"]), wide(state.dtype))
                start.append(NamedTile(self.spread(fill, axes), axes))

            def body(
                var: Node, carried: list[NamedTile], states: Sequence[Node] = tuple(states)
            ) -> list[NamedTile]:
                self.memo.clear()
                axis = self.axis("k", self.extent, block, self.begin(var, block))
                return [
                    self._one_more(s, at[s], axis, c) for s, c in zip(states, carried, strict=True)
                ]

            names = [f"s{j}_" for j in range(len(start))]
            found = (
                self.held_loop(count, start, body)
                if number
                else self.first_loop(count, start, body, names, 0, staged=True)
            )
            for state, held in zip(states, found, strict=True):
                total[state] = self.fold(held, str(state.attrs["kind"]), [lane])
            self.known.update({s: at_place(at[s], total[s]) for s in level})
        self.memo.clear()
        self.known.clear()
        return [total[s] for s in self.states.results]

    def _one_more(self, state: Node, place: Index, axis: Axis, old: NamedTile) -> NamedTile:
        """A state with one more tile, place by place."""
        kind = str(state.attrs["kind"])
        value = self.value(state.args[0], operand_place(state, place, axis.place))
        value = self.spread_over(value, [axis])
        value = self.masked(value, kind, [axis.name])
        names = tuple(axis.name if i == len(old.axes) - 1 else n for i, n in enumerate(old.axes))
        made = NamedTile(self.spread(value, names), old.axes)
        return self.apply(COMBINE[kind], [old, made])

    def _counted(self, state: Node, at: Mapping[Node, Index]) -> NamedTile:
        """A sum of what is the same at all places."""
        value = self.value(state.args[0], operand_place(state, at[state], 0))
        return self.apply("mul", [value, NamedTile(constant(self.extent, value.dtype))])


__all__ = ["WholeTiler"]
