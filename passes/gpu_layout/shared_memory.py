"""Shared memory of a thread block: tiles that threads exchange through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.types import I32, DType, TensorType
from stack.ir.warp_ops import VECTOR_BYTES
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.contiguity import sizes_of
from stack.passes.gpu_layout.instruction_layouts import swizzle_of
from stack.passes.gpu_layout.share import Layout, Share, ThreadValue

Index = Sequence[ThreadValue]


@dataclass(frozen=True)
class StagedMatrix:
    """A matrix in shared memory.

    Attributes:
        row: the row of the memory at which the matrix begins; None for the first.
    """

    memory: Node
    row: ThreadValue | None = None


@dataclass(frozen=True)
class SharedMemory:
    """Allocates shared memory; stores and loads tiles there, to change their layouts."""

    tiles: ThreadBuilder

    def alloc(self, dtype: DType, *shape: int, inside: Sequence[Node], swizzle: int = 0) -> Node:
        """Allocates memory, new in each iteration of the loops that some values depend on.

        Args:
            dtype: the element type.
            shape: the sizes.
            inside: the values.
            swizzle: bytes of a row within which 16-byte chunks are swizzled, see `swizzle_of`; 0
                for row-major.
        """
        loops = {v for n in inside for v in n.vars if "extent" in v.attrs}
        step = sorted(loops, key=lambda v: str(v.attrs["name"]))
        name = self.tiles.fresh("shared")
        attrs = {"swizzle": swizzle} if swizzle else {}
        return self.tiles.b.alloc(
            *step, name=name, **attrs, type=TensorType(dtype, shape, "shared")
        )

    def converted(self, value: ThreadValue, layout: Layout) -> ThreadValue:
        """Converts a tile to another layout: stores it in the old one, loads it in the new one."""
        return value if value.layout == layout else self.loaded(self.stored(value), layout)

    def stored(self, value: ThreadValue, is_swizzled: bool = False) -> Node:
        """Stores a tile in new shared memory, padded or swizzled. Returns the memory."""
        sizes = [s.size for s in value.layout]
        swizzle = swizzle_of(sizes[-1] * value.dtype.bytes) if is_swizzled else 0
        if len(sizes) > 1 and not swizzle:
            sizes[-1] += padding(value.dtype)
        memory = self.alloc(value.dtype, *sizes, inside=[value.node], swizzle=swizzle)
        vector = vector_of(value.dtype, value.layout[-1], sizes[-1])
        return self.write(memory, value, self.tiles.indices(value.layout), vector)

    def loaded(self, memory: Node, layout: Layout) -> ThreadValue:
        """Loads a tile from shared memory in a layout."""
        vector = vector_of(memory.dtype, layout[-1], sizes_of(memory.tensor)[-1])
        return self.read(memory, self.tiles.indices(layout), layout, vector)

    def write(self, memory: Node, value: ThreadValue, index: Index, vector: int = 1) -> Node:
        """Builds the store of a value at the indices `index`. Returns the memory."""
        args = [memory, value.node, *(i.node for i in index)]
        return self.tiles.b.op("store", args, vector_attr(vector))

    def read(self, memory: Node, index: Index, layout: Layout, vector: int = 1) -> ThreadValue:
        """Loads the elements at the indices `index`, by the threads that have them in `layout`."""
        args = [memory, *(i.node for i in index)]
        return self.tiles.op("load", args, memory.dtype, layout, vector_attr(vector))

    def uniform(self, value: ThreadValue) -> Node:
        """Converts a number that each thread has, and that is the same in all threads, to a uniform
        scalar, which one thread stores and all load from shared memory."""
        if value.is_uniform:
            return value.node
        memory = self.alloc(value.dtype, 1, inside=[value.node])
        first = self.tiles.is_first_copy(())
        assert first is not None
        memory = self.write(memory, value, [self.tiles.full(0), first])
        return self.tiles.b.load(memory, constant(0, I32), type=TensorType(value.dtype, ()))


def padding(dtype: DType) -> int:
    """Returns the elements to append to each row, against bank conflicts of columns."""
    return max(1, VECTOR_BYTES // dtype.bytes)


def vector_of(dtype: DType, share: Share, row: int) -> int:
    """Returns how many elements one access moves along an axis, in rows of `row` elements."""
    most = min(VECTOR_BYTES // dtype.bytes, share.vector)
    while most > 1 and row % most:
        most //= 2
    return most


def vector_attr(vector: int) -> dict[str, int]:
    """Returns the attributes of a load or store of `vector` elements at once; empty for 1."""
    return {"vector": vector} if vector > 1 else {}
