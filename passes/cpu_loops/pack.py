"""Packing a panel of an operand: lanes last, contracted axes before them, in local memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.builder import Builder, constant
from stack.ir.node import Node
from stack.ir.types import I64, DType, TensorType
from stack.target import Cpu

BLOCK_SHARE = 3 / 8  # of the second-level cache, for a packed panel: the rows are there too
MOST_BYTES = 2 << 20  # local memory is on the stack


def block_size(extents: Sequence[int], lanes: int, dtype: DType, cpu: Cpu) -> int | None:
    """How much of the first contracted axis to pack at once; 0 for all, None where nothing fits."""
    first = extents[0]
    whole = math.prod(extents) * lanes * dtype.bytes
    least = -(-whole // int(BLOCK_SHARE * cpu.cache_bytes))
    if least == 1:
        return 0
    for count in range(least, min(16 * least, first) + 1):
        if first % count == 0:
            return first // count
    return 0 if whole <= MOST_BYTES else None


@dataclass(frozen=True)
class Panel:
    """What to pack.

    Attributes:
        load: the block of the operand that the dot reads.
        names: its axes.
        contracted: the contracted ones, in the order in which they are packed.
        lane: the axis that goes last.
        dtype: element type of the packed panel.
    """

    load: Node
    names: tuple[str, ...]
    contracted: tuple[str, ...]
    lane: str
    dtype: DType

    def size(self, name: str) -> int:
        """Elements along an axis."""
        size = self.load.shape[self.names.index(name)]
        assert isinstance(size, int)
        return size

    @property
    def lanes(self) -> int:
        return self.size(self.lane)

    @property
    def lanes_last(self) -> bool:
        """Whether lanes lie next to each other in memory."""
        return self.names[-1] == self.lane

    def shape(self, block: int = 0) -> tuple[int, ...]:
        """Of the packed panel, or of a block of its first contracted axis."""
        first, *rest = (self.size(n) for n in self.contracted)
        return (block or first, *rest, self.lanes)

    def memory(self, b: Builder, block: int = 0) -> Node:
        """Local memory for the panel, or for a block of it."""
        return b.alloc(name="panel", type=TensorType(self.dtype, self.shape(block), "local"))

    def pack(self, b: Builder, memory: Node, start: Node | None = None) -> Node:
        """Memory with the panel, or with a block of its first contracted axis from `start`.

        One copy of a block: which loops do it, and what they transpose, is up to the printer.
        """
        source, *index = self.load.args
        shape = list(self.load.shape)
        if start is not None:
            axis = self.names.index(self.contracted[0])
            shape[axis] = memory.shape[0]
            index[len(index) - len(shape) + axis] = start
        value = b.load(source, *index, type=self.load.tensor.with_shape(tuple(shape)))
        kept = [n for n in self.names if n in self.contracted or n == self.lane]
        if len(kept) != len(shape):
            flat = tuple(shape[self.names.index(n)] for n in kept)
            value = b.reshape(value, type=value.tensor.with_shape(flat))
        if value.dtype != self.dtype:
            value = b.cast(value, type=value.tensor.with_dtype(self.dtype))
        order = tuple(kept.index(n) for n in (*self.contracted, self.lane))
        if order != tuple(range(len(order))):
            value = b.transpose(value, perm=order)
        return b.store(memory, value, *([constant(0, I64)] * memory.tensor.rank))
