"""Memory of a block of threads: what each reads and writes, and what goes through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.builder import constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.types import BOOL, I32, DType, TensorType
from stack.ir.warp_ops import LINE_BYTES, SECTOR_BYTES, VECTOR_BYTES, WARP
from stack.passes.gpu_layout.choice import blocked
from stack.passes.gpu_layout.classes import is_tile
from stack.passes.gpu_layout.runs import Runs, size_of, sizes_of
from stack.passes.gpu_layout.share import Layout, NamedTile, Share, bits_of
from stack.passes.gpu_layout.values import Values

LARGE = 16  # elements of a thread, from which a barrier costs less than what it spares
TURNED = 16  # extent of both axes of a tile from which it is read along memory and turned


class Memory(Values):
    """Loads, stores, and conversions of layouts."""

    def __init__(self, old: Block, warps: int, runs: Runs) -> None:
        super().__init__(old, warps)
        self.runs = runs

    def memory_of(self, node: Node) -> Node:
        """The memory that a memory of the block kernel is."""
        return self.known[node].node if node in self.known else node

    # ---- global memory

    def load(self, node: Node, home: Layout) -> NamedTile:
        """The elements of a tile that each thread holds."""
        if not is_tile(node):
            return self._number(node)
        vectors = [self.runs.vector(node, axis) for axis in range(node.tensor.rank)]
        layout = self._along_memory(node.tensor, home, vectors)
        index, mask, other = self._access(node, node.tensor, layout)
        axis = _last(layout, vectors)
        made = self._loaded(node, layout, axis, vectors[axis], index, mask, other)
        return self.converted(made, home)

    def _loaded(
        self,
        node: Node,
        layout: Layout,
        axis: int,
        vector: int,
        index: list[NamedTile],
        mask: NamedTile | None,
        other: Node | None,
    ) -> NamedTile:
        """A load whose neighbours in registers lie along one axis of the tile."""
        order = _with_last(len(layout), axis)
        places = [self.turned(i, order).node for i in index]
        rest: list[Node] = []
        if mask is not None:
            rest = [self.turned(mask, order).node, other or constant(0, node.dtype)]
        attrs = {k: v for k, v in node.attrs.items() if k == "evict"}
        vector = min(vector, layout[axis].vector)
        if vector > 1:
            attrs["vector"] = vector
        type_ = self.type_of(node.dtype, tuple(layout[i] for i in order))
        made = self.b.op("load", [self.memory_of(node.args[0]), *places, *rest], attrs, hint=type_)
        return self.turned(NamedTile(made, tuple(layout[i] for i in order)), _inverse(order))

    def _number(self, node: Node) -> NamedTile:
        """One element of memory."""
        index, mask, other = access_parts(node)
        held = [self.scalar(i) for i in index]
        extra = [self.scalar(x) for x in (mask, other) if x is not None]
        memory = self.memory_of(node.args[0])
        if all(h.is_uniform for h in (*held, *extra)):
            args = [memory, *(h.node for h in (*held, *extra))]
            return NamedTile(self.b.op("load", args, node.attrs, hint=node.type))
        nodes = [self.in_each(h).node for h in (*held, *extra[:1])]
        type_ = self.type_of(node.dtype, ())
        return NamedTile(
            self.b.op("load", [memory, *nodes, *(e.node for e in extra[1:])], {}, hint=type_)
        )

    def store(self, node: Node) -> Node:
        """The memory after every element was written by one thread."""
        value = node.args[1]
        if not is_tile(value):
            return self._store_number(node)
        vectors = [self.runs.vector(node, axis) for axis in range(value.tensor.rank)]
        home = self.layout_of(value, vectors)
        layout = self._along_memory(value.tensor, home, vectors)
        if self._stores_parts(value, home, vectors):
            layout = blocked(sizes_of(value.tensor), vectors, WARP * self.warps)
        held = self.at(value, layout)
        index, mask, _ = self._access(node, value.tensor, layout)
        first = self._is_first(layout)
        if first is not None:
            first = self.broadcast(first, (), layout)
            mask = first if mask is None else self.apply("and", mask, first)
        axis = _last(layout, vectors)
        order = _with_last(len(layout), axis)
        nodes = [self.turned(held, order).node, *(self.turned(i, order).node for i in index)]
        if mask is not None:
            nodes.append(self.turned(mask, order).node)
        attrs = {k: v for k, v in node.attrs.items() if k == "evict"}
        vector = min(vectors[axis], layout[axis].vector)
        if vector > 1:
            attrs["vector"] = vector
        return self.b.op("store", [self.memory_of(node.args[0]), *nodes], attrs)

    def _store_number(self, node: Node) -> Node:
        index, mask, _ = access_parts(node)
        if not index:  # all threads write one number
            value = self.uniform(self.scalar(node.args[1]))
            return self.b.store(self.memory_of(node.args[0]), value)
        parts = [self.in_each(self.scalar(a)) for a in (node.args[1], *index)]
        first = self._is_first(())
        assert first is not None
        if mask is not None:
            first = self.apply("and", first, self.in_each(self.scalar(mask)))
        nodes = [p.node for p in parts]
        return self.b.op("store", [self.memory_of(node.args[0]), *nodes, first.node], {})

    def layout_of(self, node: Node, vectors: Sequence[int] = ()) -> Layout:
        raise NotImplementedError

    def _access(
        self, node: Node, tile: TensorType, layout: Layout
    ) -> tuple[list[NamedTile], NamedTile | None, Node | None]:
        """Places on all axes of a memory, a mask, and what is read where it does not hold."""
        index, mask, other = access_parts(node)
        test = None
        if mask is not None:
            test = self.operand(mask, layout)
            test = self.broadcast(test, (), layout) if not test.layout and layout else test
        if any(i.tensor.rank for i in index):
            return [self._place(i, layout) for i in index], test, other
        memory = node.args[0].tensor
        lead = memory.rank - tile.rank
        found: list[NamedTile] = []
        for axis, start in enumerate(index):
            place = self._place(start, layout)
            at = axis - lead
            if at >= 0 and size_of(tile, at) > 1:
                steps = self.along(self.places(layout[at], start.dtype), at, layout)
                place = steps if is_zero(start) else self.apply("add", place, steps)
            size = size_of(memory, axis)
            if node.attrs.get("clip") and self._may_pass(start, tile, at, size):
                inside = self.apply("lt", place, size)
                test = inside if test is None else self.apply("and", test, inside)
            found.append(place)
        return found, test, other

    def _may_pass(self, start: Node, tile: TensorType, at: int, size: int) -> bool:
        """Whether a block that starts there may reach past the end of an axis."""
        extent = size_of(tile, at) if at >= 0 else 1
        known = self.runs.integers.range(start)
        return known is None or known[1] + extent > size

    def _place(self, index: Node, layout: Layout) -> NamedTile:
        held = self.operand(index, layout)
        return held if held.layout else self.broadcast(held, (), layout)

    def _along_memory(self, tile: TensorType, home: Layout, vectors: Sequence[int]) -> Layout:
        """The home of a tile, or, where its lanes lie across memory, a layout along that."""
        wide = [i for i, s in enumerate(sizes_of(tile)) if s >= TURNED]
        best = max(range(tile.rank), key=lambda i: vectors[i])
        lanes = [bool(s.digits) and _first_lane(s) for s in home]
        runs_along = not vectors[best] or lanes[best] == 1
        if len(wide) < 2 or runs_along or tile.dtype is BOOL:
            return home
        return blocked(sizes_of(tile), vectors, WARP * self.warps)

    def _stores_parts(self, value: Node, home: Layout, vectors: Sequence[int]) -> bool:
        """Whether lanes of a large tile would store pieces that are less than a memory sector."""
        axis = max(range(len(vectors)), key=lambda i: vectors[i])
        lanes = prod(d.count for d in home[axis].digits if d.of_lanes)
        piece = min(vectors[axis], home[axis].vector)
        is_large = prod(sizes_of(value.tensor)) >= LARGE * WARP * self.warps
        return (
            is_large and piece < vectors[axis] and piece * lanes * value.dtype.bytes < SECTOR_BYTES
        )

    def _is_first(self, layout: Layout) -> NamedTile | None:
        """Whether a thread is the first of those that hold the same; None where none do."""
        spare = (WARP * self.warps - 1) & ~bits_of(layout)
        lanes, warps = spare % WARP, spare // WARP
        test: NamedTile | None = None
        for axis, bits in ((1, lanes), (0, warps)):
            if bits:
                number = NamedTile(self.b.iota(axis=axis, type=self.type_of(I32, ())))
                if bits != (WARP, self.warps)[axis == 0] - 1:
                    number = self.apply("and", number, bits)
                same = self.apply("eq", number, 0)
                test = same if test is None else self.apply("and", test, same)
        return test

    # ---- shared memory

    def shared(self, dtype: DType, *shape: int, inside: Sequence[Node], swizzle: int = 0) -> Node:
        """Memory of the block of threads, for what depends on some values.

        Args:
            swizzle: bytes of a row that matrix instructions read at a time, see `swizzle_of`; 0
                where rows follow each other.
        """
        held: set[Node] = set()
        for node in inside:
            held |= {v for v in node.vars if "extent" in v.attrs}
        step = sorted(held, key=lambda v: str(v.attrs["name"]))
        name = self.fresh("shared")
        attrs = {"swizzle": swizzle} if swizzle else {}
        return self.b.alloc(*step, name=name, **attrs, type=TensorType(dtype, shape, "shared"))

    def converted(self, value: NamedTile, layout: Layout) -> NamedTile:
        """A tile in another layout, through shared memory."""
        if value.layout == layout:
            return value
        return self.fetched(self.kept(value), layout)

    def kept(self, value: NamedTile, is_swizzled: bool = False) -> Node:
        """A tile in shared memory; rows are longer than what they hold, for banks to differ."""
        sizes = [s.size for s in value.layout]
        swizzle = swizzle_of(sizes[-1] * value.dtype.bytes) if is_swizzled else 0
        if len(sizes) > 1 and not swizzle:
            sizes[-1] += max(1, VECTOR_BYTES // value.dtype.bytes)
        memory = self.shared(value.dtype, *sizes, inside=[value.node], swizzle=swizzle)
        index = [
            self.along(self.places(s), i, value.layout).node for i, s in enumerate(value.layout)
        ]
        attrs = self._vector(value.dtype, value.layout[-1], sizes)
        return self.b.op("store", [memory, value.node, *index], attrs)

    def fetched(self, memory: Node, layout: Layout) -> NamedTile:
        """A tile from shared memory."""
        index = [self.along(self.places(s), i, layout).node for i, s in enumerate(layout)]
        attrs = self._vector(memory.dtype, layout[-1], sizes_of(memory.tensor))
        type_ = self.type_of(memory.dtype, layout)
        return NamedTile(self.b.op("load", [memory, *index], attrs, hint=type_), layout)

    def _vector(self, dtype: DType, share: Share, sizes: Sequence[int]) -> dict[str, object]:
        most = min(VECTOR_BYTES // dtype.bytes, share.vector)
        while most > 1 and sizes[-1] % most:
            most //= 2
        return {"vector": most} if most > 1 else {}

    def uniform(self, value: NamedTile) -> Node:
        """A number that all threads have, as one of the block."""
        if value.is_uniform:
            return value.node
        memory = self.shared(value.dtype, 1, inside=[value.node])
        zero = self.in_each(NamedTile(constant(0, I32)))
        first = self._is_first(())
        assert first is not None
        memory = self.b.op("store", [memory, value.node, zero.node, first.node], {})
        type_ = TensorType(value.dtype, ())
        return self.b.op("load", [memory, constant(0, I32)], {}, hint=type_)

    def turned(self, value: NamedTile, order: Sequence[int]) -> NamedTile:
        """A tile with its axes in another order."""
        if list(order) == sorted(order):
            return value
        perm = (0, 1, *(2 + i for i in order))
        return NamedTile(
            self.b.transpose(value.node, perm=perm), tuple(value.layout[i] for i in order)
        )


def swizzle_of(row_bytes: int) -> int:
    """Bytes of a row that lie together where warpgroups read a matrix; rows are powers of two.

    Pieces of 16 bytes change places with the number of the row, so that eight rows lie in
    different banks (PTX ISA, "Shared Memory Matrix Layout").
    """
    return min(LINE_BYTES, row_bytes)


def is_zero(node: Node) -> bool:
    """Whether a number is the constant 0."""
    return node.op == "const" and not node.attrs["value"].array.any()


def _first_lane(share: Share) -> int:
    """The least lane in which the place on an axis differs; 0 where it is the same in all."""
    strides = [d.stride for d in share.digits if d.of_lanes]
    return min(strides, default=0)


def _last(layout: Layout, vectors: Sequence[int]) -> int:
    """The axis along which registers move together."""
    pieces = [min(v, s.vector) for v, s in zip(vectors, layout, strict=True)]
    return max(range(len(layout)), key=lambda i: (pieces[i], i))


def _with_last(rank: int, axis: int) -> list[int]:
    return [*(i for i in range(rank) if i != axis), axis]


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda i: order[i])
