"""What kernels of streams share: three blocks over one set of inputs, states as known values."""

from __future__ import annotations

from collections.abc import Callable

from stack.ir.axes import Index
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.passes.exact_tiling.tiler import Tiler
from stack.passes.tiling.frame import CannotTile, static

Reader = Callable[[Index], Node]


class StreamValues(Tiler):
    """Values inside of a stream.

    Attributes:
        states, correct, ending: its blocks; `ending` is `finish`.
        extent: of the streamed axis.
        known: nodes that are not computed, and how to read them at an index.
    """

    def __init__(self, stream: Node) -> None:
        super().__init__(stream)
        self.states, self.correct, self.ending = stream.blocks
        arguments = self.ending.params[len(self.states.results) :]
        self.inputs.update(
            (q, self.inputs[p]) for p, q in zip(self.states.params, arguments, strict=True)
        )
        for array in (n for n in self.ending.nodes if n.op == "const" and n.tensor.rank):
            if array not in self.inputs:
                self.inputs[array] = self.memory(f"p{len(self.args)}", array.tensor)
                self.args.append(array)
        self.extent = static(streamed_extent(stream))
        self.known: dict[Node, Reader] = {}

    def _ops(self) -> tuple[str, ...]:
        nodes = (*self.states.nodes, *self.ending.nodes)
        return tuple(dict.fromkeys(n.op for n in nodes if n.op != "const"))

    def outputs(self) -> list[Node]:
        return [self.memory(f"o{i}", r.tensor) for i, r in enumerate(self.ending.results)]

    def value(self, node: Node, index: Index, guard: Node | None) -> Node:
        """As of `Values`; states are known."""
        if node in self.known:
            return self.known[node](index)
        return super().value(node, index, guard)

    def computed(self, node: Node, index: Index) -> Node:
        """The value of a known node, computed all the same."""
        return super().value(node, index, None)

    def at_place(self, place: Index, held: Node) -> Reader:
        """A value that is only read at one place."""

        def read(index: Index) -> Node:
            if index != place:
                raise CannotTile("a state is read at a computed index")
            return held

        return read
