"""Reshapes, transposes and gathers: ops after which threads have other elements."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from stack.ir.node import Node
from stack.ir.types import TensorType
from stack.passes.gpu_layout.attributes import CannotDistribute
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.classes import kept_dims
from stack.passes.gpu_layout.contiguity import sizes_of, strides_of
from stack.passes.gpu_layout.share import Layout, Share, ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory
from stack.passes.gpu_layout.values import Values


@dataclass(frozen=True)
class Movement:
    """Builds ops that move elements: as another view of registers, or through shared memory."""

    tiles: ThreadBuilder
    shared: SharedMemory
    values: Values

    def transpose(self, node: Node, layout: Layout) -> ThreadValue:
        """Builds a transpose whose result is in `layout`: no element moves, since the operand is
        taken in the layout with the same axes in another order.
        """
        perm = [int(p) for p in node.attrs["perm"]]
        source = tuple(layout[perm.index(i)] for i in range(len(perm)))
        return self.tiles.transpose(self.values.at(node.args[0], source), perm)

    def reshape(self, node: Node, layout: Layout) -> ThreadValue:
        """Builds a reshape whose result is in `layout`: a view of registers if only axes of size 1
        change, else through shared memory.
        """
        (source,) = node.args
        if not source.tensor.rank:
            value = self.values.scalar(source)
            return self.tiles.broadcast(value, (), layout) if layout else value
        pairs = kept_dims(source.tensor, node.tensor)
        if pairs is not None:
            own = [Share()] * source.tensor.rank
            for before, after in pairs:
                own[before] = layout[after]
            return self.tiles.reshape(self.values.at(source, tuple(own)), layout)
        value = self.values.in_own_layout(source)
        size = prod(sizes_of(node.tensor))
        memory = self.shared.alloc(value.dtype, size, inside=[value.node])
        memory = self.shared.write(memory, value, [self._row_major(value.layout, source.tensor)])
        return self.shared.read(memory, [self._row_major(layout, node.tensor)], layout)

    def _row_major(self, layout: Layout, tile: TensorType) -> ThreadValue:
        """The row-major index of each element of a tile."""
        indices = self.tiles.indices(layout)
        return self.tiles.sum(map(self.tiles.scaled, indices, strides_of(tile)))

    def gather(self, node: Node, layout: Layout) -> ThreadValue:
        """Builds a gather from a vector, through shared memory."""
        source, index = node.args
        if source.tensor.rank != 1:
            raise CannotDistribute("a gather from more than one axis")
        memory = self.shared.stored(self.values.in_own_layout(source))
        return self.shared.read(memory, [self.values.at(index, layout)], layout)
