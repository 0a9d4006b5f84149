"""What every kernel of a stream has: three blocks over one set of inputs, and states in order."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import constant
from stack.ir.node import Block, Node, topological
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import arrays_of, op_names
from stack.passes.blocking.frame import NamedTile
from stack.passes.blocking.kernel import KernelTiler
from stack.passes.positions.assumed import Assumed
from stack.passes.tiling.frame import static


class StreamStates(KernelTiler):
    """The blocks of a stream, as tilers of all targets read them.

    Attributes:
        states, correct, ending: its blocks; `ending` is `finish`.
        extent: of the streamed axis.
    """

    states: Block
    correct: Block
    ending: Block
    extent: int

    def enter(self) -> None:
        """Take the blocks of the group: what is read in any of them is one memory."""
        self.states, self.correct, self.ending = self.group.blocks
        arguments = self.ending.params[len(self.states.results) :]
        for p, q in zip(self.states.params, arguments, strict=True):
            self.inputs[q] = self.inputs[p]
        for array in arrays_of(self.ending):
            if array not in self.inputs:
                self.inputs[array] = self.memory(f"p{len(self.args)}", array.tensor)
                self.args.append(array)
        self.extent = static(streamed_extent(self.group))

    def _ops(self) -> tuple[str, ...]:
        return op_names((*self.states.nodes, *self.ending.nodes))

    def locs(self, node: Node) -> tuple[str, ...]:
        return self.states.locs.get(node) or self.ending.locs.get(node, ())

    def named(self, node: Node) -> str:
        return self.states.names.get(node) or self.ending.names.get(node, "")

    def levels(self) -> list[list[int]]:
        """The states, those first that read no other, then those that read only these, and on."""
        depth: dict[Node, int] = {}
        for state in self.states.results:
            before = [depth[n] for n in topological(state.args) if n in depth]
            depth[state] = max(before, default=-1) + 1
        found: list[list[int]] = [[] for _ in range(max(depth.values()) + 1)]
        for j, state in enumerate(self.states.results):
            found[depth[state]].append(j)
        return found

    def fails(self, guess: Assumed, held: Sequence[NamedTile]) -> Node:
        """1 where some row tells against a guess, by its states, else 0."""
        wrong: NamedTile | None = None
        for j, floor in guess.floors.items():
            least = self.fold(held[j], "min", held[j].axes) if held[j].axes else held[j]
            holds = self.apply("gt", [least, NamedTile(constant(floor, least.dtype))])
            below = self.apply("not", [holds])
            wrong = below if wrong is None else self.apply("or", [wrong, below])
        assert wrong is not None
        return self.cast(wrong, self.integer).node


__all__ = ["StreamStates"]
