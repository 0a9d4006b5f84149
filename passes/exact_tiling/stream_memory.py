"""Memory of a program that computes a stream: rows of lanes, and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir.builder import constant
from stack.ir.dim import Dim, add
from stack.ir.node import Node
from stack.ir.types import F32, I64, DType, TensorType
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.stream_states import StreamStates
from stack.passes.exact_tiling.tiler import Tiler
from stack.passes.tiling.frame import static


class StreamMemory(StreamStates, Tiler):
    """Loops that carry memory, and what is in it.

    Attributes:
        program: index variables of the grid, which memory of a program is given.
        iteration: those of the panel under way as well.
        lane: the axis of the rows, which tiles hold.
    """

    lane: Axis
    program: tuple[Node, ...] = ()
    iteration: tuple[Node, ...] = ()

    def local(
        self, hint: str, shape: Sequence[Dim], inside: Sequence[Node], dtype: DType = F32
    ) -> Node:
        """Memory of the loops whose indices are given."""
        self.fresh += 1
        type_ = TensorType(dtype, tuple(shape), "local")
        name = self.names.own(f"{hint}_{self.fresh}")
        return self.b.op("alloc", inside, {"name": name}, hint=type_)

    def over(self, axis: Axis, memory: Node, body: Callable[[Node], Node]) -> Node:
        """Memory after a serial loop over an axis."""

        def iteration(var: Node, held: list[NamedTile]) -> list[NamedTile]:
            return [NamedTile(body(held[0].node))]

        return self.along(axis, [NamedTile(memory)], iteration, "held")[0].node

    def line(self, memory: Node, row: Dim) -> NamedTile:
        """One row of local memory: a value for each lane."""
        type_ = TensorType(memory.dtype, (self.lane.block,), "tile")
        made = self.b.load(memory, self.number(row).node, constant(0, I64), type=type_)
        return NamedTile(made, (self.lane.name,))

    def keep(self, memory: Node, value: NamedTile, row: Dim) -> Node:
        """Memory with one more row."""
        made = self.spread(self.cast(value, memory.dtype), [self.lane.name])
        return self.b.store(memory, made, self.number(row).node, constant(0, I64))

    def paired(self, block: Node, group: int, inside: Sequence[Node]) -> Node:
        """Memory with a block of 16-bit floats, neighbours along its first axis together."""
        depth, width = map(static, block.shape)
        memory = self.local("pairs", (depth // group, width, group), inside, block.dtype)
        cut = block.tensor.with_shape((depth // group, group, width))
        value = self.b.transpose(self.b.reshape(block, type=cut), perm=(0, 2, 1))
        return self.whole(memory, value)

    def as_(self, block: Node, dtype: DType) -> Node:
        """A block in another element type."""
        return self.cast(NamedTile(block), dtype).node

    def whole(self, memory: Node, value: Node) -> Node:
        """Memory with all of a value."""
        return self.b.store(memory, value, *[constant(0, I64)] * memory.tensor.rank)

    def all_of(self, memory: Node) -> Node:
        """Memory as a block."""
        type_ = TensorType(memory.dtype, memory.shape, "tile")
        return self.b.load(memory, *[constant(0, I64)] * memory.tensor.rank, type=type_)

    def with_zeros(self, block: Node, shape: tuple[int, int], inside: Sequence[Node]) -> Node:
        """Memory with a block of two axes, one of which goes on with zeros."""
        (rows, width), own = shape, tuple(map(static, block.shape))
        memory = self.local("padded", shape, inside, block.dtype)
        is_longer = rows != own[0]
        size = width if is_longer else width - own[1]
        type_ = TensorType(block.dtype, (size,), "tile")
        zeros = self.b.broadcast(constant(0.0, block.dtype), axes=(), type=type_)
        step = self.loop_axis("z", rows - own[0] if is_longer else rows)

        def fill(held: Node) -> Node:
            row = self.number(add(step.place, own[0]) if is_longer else step.place).node
            return self.b.store(held, zeros, row, constant(0 if is_longer else own[1], I64))

        return self.whole(self.over(step, memory, fill), block)
