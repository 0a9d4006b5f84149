"""Matrix products by threads: the first four rungs of the ladder.

`Direct` reads both operands from global memory, one element of the result for each thread; with
neighbouring lanes in a column (naive) or in a row (coalesced). `Tiled` brings blocks of both to
shared memory first, where every element is read by many threads; a thread has one element of the
result (shared) or a small tile of them in registers (register), so that what it reads is used more
often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.types import I64, DType, TensorType
from stack.ir.warp_ops import VECTOR_BYTES, WARP
from stack.passes.gpu_loops.frame import CannotDistribute
from stack.passes.gpu_loops.gemm import Product
from stack.passes.gpu_loops.operand import Operand, line, share
from stack.passes.tiling.frame import power_of_two
from stack.passes.tiling.loops import index

MOST_WARPS = 32  # of a block of threads, on all GPUs
ACROSS = 16  # threads below and beside each other, each with groups of sums


class Direct(Product):
    """One element for each thread, straight from global memory."""

    def __init__(self, block: Block, is_coalesced: bool) -> None:
        super().__init__(block)
        self.is_coalesced = is_coalesced
        self.along = self.columns if is_coalesced else self.rows  # what goes along the lanes
        self.across = self.rows if is_coalesced else self.columns
        self.warps = min(MOST_WARPS, self.across)
        self.iterations = (-(-self.across // self.warps), -(-self.along // WARP))
        padded = (self.iterations[0] * self.warps, self.iterations[1] * WARP)
        self.left.padded, self.right.padded = padded if is_coalesced else padded[::-1]

    def block(self) -> Block:
        """The kernel's block."""

        def program(step: Node, held: list[Node]) -> list[Node]:
            self.place_block(step)
            return self.t.over_warps(self.warps, held, self._warp)

        return self.t.kernel(self.t.rows, program)

    def _warp(self, held: list[Node]) -> list[Node]:
        return self.t.over_lanes(held, self._thread)

    def _thread(self, held: list[Node]) -> list[Node]:
        """All elements of one thread."""
        t, (down, along) = self.t, self.iterations

        def iteration(i: Node, j: Node, memories: list[Node]) -> list[Node]:
            first = self.b.add(t.times(i, self.warps), t.warp) if down > 1 else t.warp
            second = self.b.add(t.times(j, WARP), t.lane) if along > 1 else t.lane
            row, column = (first, second) if self.is_coalesced else (second, first)
            total = self._sum(row, column)
            value = self.b.broadcast(total, axes=(), type=line(self.dtype, 1))
            return self.finish(memories, row, column, 1, value)

        i, j = index(self.fresh("i"), down), index(self.fresh("j"), along)
        if down == along == 1:
            return iteration(t.int(0), t.int(0), held)
        return t.over(
            "serial", i, held, lambda m: t.over("serial", j, m, lambda n: iteration(i, j, n))
        )

    def _sum(self, row: Node, column: Node) -> Node:
        k = index(self.fresh("k"), self.depth)
        held = Node("var", (), {"name": self.fresh("sum")}, TensorType(self.dtype, ()))
        parts = [
            self._element(operand, operand.inside(place, 1), k)
            for operand, place in ((self.left, row), (self.right, column))
        ]
        block = Block((k, held), [self.b.fma(*parts, held)])
        start = constant(0, self.dtype)
        return self.b.op("loop", [start], {"kind": "serial"}, (block,))

    def _element(self, operand: Operand, own: Node, depth: Node) -> Node:
        place = operand.at(own, depth, self.start_of)
        value = self.b.load(operand.memory, *place, type=TensorType(operand.dtype, ()))
        if value.dtype == self.dtype:
            return value
        return self.b.cast(value, type=value.tensor.with_dtype(self.dtype))


@dataclass(frozen=True)
class Layout:
    """How the tile is shared out among threads.

    Attributes:
        down: threads below each other.
        across: threads beside each other.
        rows: groups of neighbouring rows of one thread.
        columns: groups of neighbouring columns of one thread.
        lanes: neighbours in a group.
        depth: elements of depth in shared memory at a time.
    """

    down: int
    across: int
    rows: int
    columns: int
    lanes: int
    depth: int

    @property
    def warps(self) -> int:
        return self.down * self.across // WARP


def pick_layout(rows: int, columns: int, dtype: DType, is_single: bool) -> Layout:
    """One element for each thread, or groups of sixteen bytes."""
    if is_single:
        across = min(power_of_two(columns), WARP)
        down = min(power_of_two(rows), MOST_WARPS * WARP // across)
        down = max(down, WARP // across)
        return Layout(down, across, -(-rows // down), -(-columns // across), 1, WARP)
    lanes = max(1, VECTOR_BYTES // dtype.bytes)
    step = lanes * ACROSS
    return Layout(ACROSS, ACROSS, -(-rows // step), -(-columns // step), lanes, ACROSS)


class Tiled(Product):
    """Blocks of both operands in shared memory, depth first; sums in registers."""

    def __init__(self, block: Block, is_single: bool) -> None:
        super().__init__(block)
        self.layout = pick_layout(self.rows, self.columns, self.dtype, is_single)
        way = self.layout
        self.left.padded = way.down * way.rows * way.lanes
        self.right.padded = way.across * way.columns * way.lanes
        self.tall = way.rows * way.lanes  # rows of one thread
        if self.tall * way.columns * way.lanes > 128:
            raise CannotDistribute(f"{self.rows} x {self.columns} sums do not fit in registers")

    def block(self) -> Block:
        """The kernel's block."""
        return self.t.kernel(self.t.rows, self._program)

    def _program(self, step: Node, held: list[Node]) -> list[Node]:
        t, way = self.t, self.layout
        self.place_block(step)
        shape = (way.warps, WARP, self.tall, way.columns * way.lanes)
        sums = t.memory("local", "sums", self.dtype, *shape)
        sums = t.over_warps(way.warps, [sums], self._clear)[0]
        shared = [
            operand.shared(hint, self.dtype, way.depth, way.lanes, 1, False)
            for operand, hint in ((self.left, "a"), (self.right, "b"))
        ]
        iteration = index(self.fresh("t"), -(-self.depth // way.depth))

        def body(memories: list[Node]) -> list[Node]:
            start = t.times(iteration, way.depth)
            filled = t.over_warps(way.warps, memories[:2], lambda m: self._fill(m, start))

            def work(inner: list[Node]) -> list[Node]:
                return t.over_lanes(inner, lambda m: [self._multiply(filled, m[0])])

            return [*filled, *t.over_warps(way.warps, memories[2:], work)]

        sums = t.over("serial", iteration, [*shared, sums], body)[2]
        return t.over_warps(
            way.warps, held, lambda m: t.over_lanes(m, lambda n: self._store(n, sums))
        )

    def _clear(self, held: list[Node]) -> list[Node]:
        t, way = self.t, self.layout
        size = way.columns * way.lanes
        zero = self.b.broadcast(constant(0, self.dtype), axes=(), type=line(self.dtype, size))

        def rows(memories: list[Node]) -> list[Node]:
            i = index(self.fresh("i"), self.tall)
            return t.over(
                "unroll",
                i,
                memories,
                lambda m: [self.b.store(m[0], zero, t.warp, t.lane, i, t.int(0))],
            )

        return t.over_lanes(held, rows)

    # ---- to shared memory

    def _fill(self, held: list[Node], start: Node) -> list[Node]:
        def lanes(memories: list[Node]) -> list[Node]:
            pairs = zip((self.left, self.right), memories, strict=True)
            return [self._copy(operand, memory, start) for operand, memory in pairs]

        return self.t.over_lanes(held, lanes)

    def _copy(self, operand: Operand, memory: Node, start: Node) -> Node:
        """One thread's share of a block of an operand; zeros past the depth."""
        t, b, way = self.t, self.b, self.layout
        lanes = operand.lanes(VECTOR_BYTES)
        while way.depth % lanes or operand.padded % lanes:
            lanes //= 2
        iterations, item = share(t, operand.vectors(way.depth, lanes), way.warps)

        def one(held: Node, iteration: Node) -> Node:
            own, inner = operand.place(item(iteration), way.depth, lanes)
            value = self._read(operand, own, b.add(start, inner), lanes)
            if operand.is_deep and lanes > 1:  # neighbours in depth go below each other
                steps = b.add(b.iota(axis=0, type=line(I64, lanes)), inner)
                across = b.broadcast(own, axes=(), type=line(I64, lanes))
                return b.store(held, value, steps, across)
            return b.store(held, value, inner, own)

        if iterations == 1:
            return one(memory, t.int(0))
        iteration = index(self.fresh("c"), iterations)
        return t.over("unroll", iteration, [memory], lambda m: [one(m[0], iteration)])[0]

    def _read(self, operand: Operand, own: Node, depth: Node, lanes: int) -> Node:
        b = self.b
        step = lanes if operand.is_deep else 1
        is_ragged = bool(operand.depth % self.layout.depth)
        safe = b.min(depth, operand.depth - step) if is_ragged else depth
        place = operand.at(operand.inside(own, lanes), safe, self.start_of)
        value = b.load(operand.memory, *place, type=line(operand.dtype, lanes))
        if value.dtype != self.dtype:
            value = b.cast(value, type=value.tensor.with_dtype(self.dtype))
        if is_ragged:
            value = b.select(b.lt(depth, operand.depth), value, constant(0, self.dtype))
        return value

    # ---- products

    def _thread(self) -> tuple[Node, Node]:
        """Row and column of a thread among the threads."""
        t, b, way = self.t, self.b, self.layout
        thread = b.add(t.times(t.warp, WARP), t.lane)
        return b.div(thread, way.across), b.rem(thread, way.across)

    def _at(self, group: int, thread: Node, threads: int, inside: int = 0) -> Node:
        """Where a group of neighbours of a thread starts."""
        way = self.layout
        place = self.t.times(thread, way.lanes)
        offset = group * threads * way.lanes + inside
        return self.b.add(place, offset) if offset else place

    def _multiply(self, shared: Sequence[Node], sums: Node) -> Node:
        """All products of a block of depth; the sums stay in registers."""
        t, b, way = self.t, self.b, self.layout
        row, column = self._thread()
        k = index(self.fresh("k"), way.depth)
        vector = line(self.dtype, way.lanes)
        places = [(i, g) for i in range(self.tall) for g in range(way.columns)]
        start = [
            b.load(sums, t.warp, t.lane, t.int(i), t.int(g * way.lanes), type=vector)
            for i, g in places
        ]
        held = [Node("var", (), {"name": self.fresh("sum")}, vector) for _ in places]
        lefts = [
            b.load(
                shared[0],
                k,
                self._at(i // way.lanes, row, way.down, i % way.lanes),
                type=TensorType(self.dtype, ()),
            )
            for i in range(self.tall)
        ]
        rights = [
            b.load(shared[1], k, self._at(g, column, way.across), type=vector)
            for g in range(way.columns)
        ]
        more = [b.fma(lefts[i], rights[g], h) for (i, g), h in zip(places, held, strict=True)]
        loop = b.op("loop", start, {"kind": "unroll"}, (Block((k, *held), more),))
        totals = [b.item(loop, index=n) for n in range(len(places))] if len(places) > 1 else [loop]
        for (i, g), total in zip(places, totals, strict=True):
            sums = b.store(sums, total, t.warp, t.lane, t.int(i), t.int(g * way.lanes))
        return sums

    def _store(self, held: list[Node], sums: Node) -> list[Node]:
        t, b, way = self.t, self.b, self.layout
        row, column = self._thread()
        lanes = self.result_lanes(way.lanes)
        for i in range(self.tall):
            for g in range(0, way.columns * way.lanes, lanes):
                value = b.load(
                    sums, t.warp, t.lane, t.int(i), t.int(g), type=line(self.dtype, lanes)
                )
                at_row = self._at(i // way.lanes, row, way.down, i % way.lanes)
                at_column = self._at(g // way.lanes, column, way.across, g % way.lanes)
                held = self.finish(held, at_row, at_column, lanes, value)
        return held
