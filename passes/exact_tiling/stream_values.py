"""What kernels of streams share: three blocks over one set of inputs, states as known values."""

from __future__ import annotations

from stack.ir.axes import Index
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import is_array, op_names
from stack.passes.blocking.frame import NamedTile
from stack.passes.exact_tiling.tiler import Tiler
from stack.passes.tiling.frame import static


class StreamValues(Tiler):
    """Values inside of a stream.

    Attributes:
        states, correct, ending: its blocks; `ending` is `finish`.
        extent: of the streamed axis.
    """

    def __init__(self, stream: Node) -> None:
        super().__init__(stream)
        self.states, self.correct, self.ending = stream.blocks
        arguments = self.ending.params[len(self.states.results) :]
        self.inputs.update(
            (q, self.inputs[p]) for p, q in zip(self.states.params, arguments, strict=True)
        )
        for array in (n for n in self.ending.nodes if is_array(n)):
            if array not in self.inputs:
                self.inputs[array] = self.memory(f"p{len(self.args)}", array.tensor)
                self.args.append(array)
        self.extent = static(streamed_extent(stream))

    def _ops(self) -> tuple[str, ...]:
        nodes = (*self.states.nodes, *self.ending.nodes)
        return op_names(nodes)

    def value(self, node: Node, index: Index, guard: NamedTile | None = None) -> NamedTile:
        """As of all tilers; what is known may change, and is not remembered."""
        if node in self.known:
            return self.known[node](index)
        return super().value(node, index, guard)
