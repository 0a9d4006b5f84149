"""Loads and stores of global memory: each thread moves its elements of a tile, as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stack.ir.builder import constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.types import BOOL, TensorType
from stack.ir.warp_ops import SECTOR_BYTES, WARP
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.classes import is_tile
from stack.passes.gpu_layout.contiguity import Contiguity, size_of, sizes_of, tile_of
from stack.passes.gpu_layout.layouts import Layouts
from stack.passes.gpu_layout.share import Layout, Share, ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory, vector_attr
from stack.passes.gpu_layout.values import Values
from stack.passes.steps.loops import is_constant
from stack.target.gpu_tuning import GpuLayouts


@dataclass(frozen=True)
class Access:
    """The addresses at which the threads read or write memory.

    Attributes:
        index: along each axis of the memory.
        mask: True for the elements that exist; None for all.
        other: the value of a load for elements that do not exist; None for 0.
    """

    index: Sequence[ThreadValue]
    mask: ThreadValue | None
    other: Node | None = None


@dataclass(frozen=True)
class GlobalMemory:
    """Builds loads, stores and asynchronous copies."""

    tiles: ThreadBuilder
    shared: SharedMemory
    values: Values
    layouts: Layouts
    contiguity: Contiguity
    tuning: GpuLayouts

    # ---- loads

    def load(self, node: Node, layout: Layout) -> ThreadValue:
        """Builds the load of a tile in a layout, or of a single number."""
        if not is_tile(node):
            return self._load_number(node)
        vectors = self.contiguity.vectors(node)
        coalesced = self._coalesced(node.tensor, layout, vectors)
        axis = _vector_axis(coalesced, vectors)
        made = self.read(node, coalesced, axis, vectors[axis])
        return self.shared.converted(made, layout)

    def read(self, node: Node, layout: Layout, axis: int, vector: int) -> ThreadValue:
        """Builds the load of a tile in a layout, as vectors along one axis."""
        access = self._access(node, layout)
        order = _with_last(len(layout), axis)
        args = [self.values.memory(node.args[0]), *self._transposed(access, order)]
        if access.mask is not None:
            args.append(access.other or constant(0, node.dtype))
        own = tuple(layout[i] for i in order)
        attrs = _attrs(node, min(vector, layout[axis].vector))
        made = self.tiles.op("load", args, node.dtype, own, attrs)
        return self.tiles.transpose(made, sorted(range(len(order)), key=lambda i: order[i]))

    def _load_number(self, node: Node) -> ThreadValue:
        index, mask, other = access_parts(node)
        parts = [self.values.scalar(i) for i in (*index, *([] if mask is None else [mask]))]
        rest = [] if other is None else [self.values.scalar(other)]
        memory = self.values.memory(node.args[0])
        if all(p.is_uniform for p in (*parts, *rest)):
            args = [memory, *(p.node for p in (*parts, *rest))]
            return ThreadValue(self.tiles.b.op("load", args, node.attrs, hint=node.type))
        args = [memory, *(self.tiles.per_thread(p).node for p in parts), *(r.node for r in rest)]
        return self.tiles.op("load", args, node.dtype)

    # ---- stores

    def store(self, node: Node) -> Node:
        """Builds the store of a tile, one thread for each element. Returns the memory."""
        value = node.args[1]
        if not is_tile(value):
            return self._store_number(node)
        vectors = self.contiguity.vectors(node)
        own = self.layouts.of(value, vectors)
        layout = self._coalesced(value.tensor, own, vectors)
        if self._has_partial_sectors(value, own, vectors):
            layout = self.layouts.blocked(sizes_of(value.tensor), vectors)
        tile = self.values.at(value, layout)
        access = self._access(node, layout)
        first = self.tiles.is_first_copy(layout)
        if first is not None:
            first = self.tiles.broadcast(first, (), layout)
            access = Access(access.index, self._both(access.mask, first))
        axis = _vector_axis(layout, vectors)
        order = _with_last(len(layout), axis)
        tile = self.tiles.transpose(tile, order)
        args = [self.values.memory(node.args[0]), tile.node, *self._transposed(access, order)]
        attrs = _attrs(node, min(vectors[axis], layout[axis].vector))
        return self.tiles.b.op("store", args, attrs)

    def _store_number(self, node: Node) -> Node:
        memory = self.values.memory(node.args[0])
        value = self.values.scalar(node.args[1])
        index, mask, _ = access_parts(node)
        if not index:  # all threads write the same number
            return self.tiles.b.store(memory, self.shared.uniform(value))
        parts = [value, *(self.values.scalar(i) for i in index)]
        first = self.tiles.is_first_copy(())
        assert first is not None
        if mask is not None:
            first = self._both(first, self.tiles.per_thread(self.values.scalar(mask)))
        nodes = [*(self.tiles.per_thread(p).node for p in parts), first.node]
        return self.tiles.b.op("store", [memory, *nodes], {})

    def _has_partial_sectors(self, value: Node, own: Layout, vectors: Sequence[int]) -> bool:
        """True if storing a large tile in its own layout writes less than sectors."""
        axis = max(range(len(vectors)), key=lambda i: vectors[i])
        lanes = prod(d.count for d in own[axis].digits if d.of_lanes)
        vector = min(vectors[axis], own[axis].vector)
        least = self.tuning.barrier_elements * WARP * self.tiles.warps
        is_large = prod(sizes_of(value.tensor)) >= least
        written = vector * lanes * value.dtype.bytes
        return is_large and vector < vectors[axis] and written < SECTOR_BYTES

    # ---- copies

    def copy(self, load: Node, target: Node, row: ThreadValue, exists: Node) -> Node:
        """Starts an asynchronous copy of a tile; returns the shared memory after it.

        Args:
            load: the load of the tile from global memory.
            target: the shared memory.
            row: the first row of `target` to write.
            exists: a uniform condition; if it is false, the copy is of zeros.
        """
        vectors = self.contiguity.vectors(load)
        layout = self.layouts.blocked(sizes_of(load.tensor), vectors)
        access = self._access(load, layout)
        index = self.tiles.indices(layout)
        index[0] = self.tiles.apply("add", index[0], self.tiles.broadcast(row, (), layout))
        mask = self._both(access.mask, self.tiles.broadcast(ThreadValue(exists), (), layout))
        source = self.values.memory(load.args[0])
        args = [target, source, *(i.node for i in (*index, *access.index)), mask.node]
        lanes = min(vectors[-1], layout[-1].vector)
        return self.tiles.b.op("async_copy", args, {"lanes": lanes})

    # ---- indices and masks

    def _access(self, node: Node, layout: Layout) -> Access:
        """Builds the indices and the mask of a load or store for each element in `layout`."""
        tile = tile_of(node).tensor
        index, mask, other = access_parts(node)
        test = None if mask is None else self._spread(mask, layout)
        if any(i.tensor.rank for i in index):
            return Access([self._spread(i, layout) for i in index], test, other)
        memory = node.args[0].tensor
        found: list[ThreadValue] = []
        for axis, start in enumerate(index):
            i = self._spread(start, layout)
            at = axis - (memory.rank - tile.rank)
            if at >= 0 and size_of(tile, at) > 1:
                steps = self.tiles.index(layout, at, start.dtype)
                i = steps if is_constant(start, 0) else self.tiles.apply("add", i, steps)
            size, extent = size_of(memory, axis), size_of(tile, at) if at >= 0 else 1
            may_pass = self.contiguity.integers.may_pass(start, extent, size)
            if node.attrs.get("clip") and may_pass:
                test = self._both(test, self.tiles.apply("lt", i, size))
            found.append(i)
        return Access(found, test, other)

    def _both(self, first: ThreadValue | None, second: ThreadValue) -> ThreadValue:
        return second if first is None else self.tiles.apply("and", first, second)

    def _spread(self, node: Node, layout: Layout) -> ThreadValue:
        """Returns an index or a mask, a scalar or a tile, as a tile in `layout`."""
        value = self.values.operand(node, layout)
        return value if value.layout else self.tiles.broadcast(value, (), layout)

    def _transposed(self, access: Access, order: Sequence[int]) -> list[Node]:
        """Returns the indices and the mask of an access, with axes in another order."""
        parts = [*access.index, *([] if access.mask is None else [access.mask])]
        return [self.tiles.transpose(p, order).node for p in parts]

    def _coalesced(self, tile: TensorType, own: Layout, vectors: Sequence[int]) -> Layout:
        """Returns the layout in which to access a tile: `own`, its layout, unless the tile is large
        and its lanes are strided in memory. Then it is a layout in which consecutive lanes access
        consecutive vectors."""
        wide = [i for i, s in enumerate(sizes_of(tile)) if s >= self.tuning.transposed_side]
        best = max(range(tile.rank), key=lambda i: vectors[i])
        is_coalesced = not vectors[best] or _first_lane(own[best]) == 1
        if len(wide) < 2 or is_coalesced or tile.dtype is BOOL:
            return own
        return self.layouts.blocked(sizes_of(tile), vectors)


def _attrs(node: Node, vector: int) -> dict[str, object]:
    evict = {k: v for k, v in node.attrs.items() if k == "evict"}
    return {**evict, **vector_attr(vector)}


def _first_lane(share: Share) -> int:
    """Returns the smallest lane with another index than lane 0; 0 if there is none."""
    return min((d.stride for d in share.digits if d.of_lanes), default=0)


def _vector_axis(layout: Layout, vectors: Sequence[int]) -> int:
    """Returns the last of the axes along which one access moves the most neighbours."""
    widths = [min(v, s.vector) for v, s in zip(vectors, layout, strict=True)]
    return max(range(len(layout)), key=lambda i: (widths[i], i))


def _with_last(rank: int, axis: int) -> list[int]:
    return [*(i for i in range(rank) if i != axis), axis]
