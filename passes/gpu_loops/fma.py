"""Products of f32 and f64 by threads, with copies under way: what tensor cores do not take.

A warp computes a tile of 4 x 8 threads, each of which multiplies a small tile of its own in
registers. Sums of one block of depth are added up apart and then to the total: rounding errors
grow with the number of blocks and not with the depth. A. M. Castaldo, R. C. Whaley,
A. T. Chronopoulos, "Reducing floating point error in dot product using the superblock family of
algorithms" (2008).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.types import DType, TensorType
from stack.ir.warp_ops import LINE_BYTES, VECTOR_BYTES, WARP
from stack.passes.gpu_loops.frame import CannotDistribute
from stack.passes.gpu_loops.operand import Operand, line
from stack.passes.gpu_loops.staged import LEAST_WARPS, MOST_WARPS, Staged
from stack.passes.tiling.frame import power_of_two
from stack.passes.tiling.loops import index

UNROLLED = 8  # steps of depth whose code the nearest instruction cache holds
DOWN, ACROSS = 4, 8  # threads of a warp below and beside each other
MOST = {4: 8, 8: 4}  # rows and columns of a thread, by bytes of an element
BUSY = 64 * 64  # elements of a tile from which threads have that many columns


@dataclass(frozen=True)
class Share:
    """Rows, or columns, of the tile that each thread has.

    Attributes:
        operand: whose rows they are.
        threads: of a warp along this axis.
        count: of one thread.
        lanes: neighbours in memory that one access takes.
    """

    operand: Operand
    threads: int
    count: int
    lanes: int

    @staticmethod
    def of(operand: Operand, threads: int, count: int, dtype: DType) -> Share:
        """The share whose accesses to shared memory are widest, without conflicts."""
        lanes = 1 if operand.is_deep else min(count, VECTOR_BYTES // dtype.bytes)
        return Share(operand, threads, count, lanes)

    @property
    def extent(self) -> int:
        """Of a warp."""
        return self.threads * self.count

    @property
    def warps(self) -> int:
        """That the tile takes along this axis."""
        return -(-self.operand.extent // self.extent)


class Fma(Staged):
    """Fused multiply-adds; `stages` blocks of depth are in shared memory at a time."""

    def __init__(self, block: Block, stages: int) -> None:
        super().__init__(block, stages, LINE_BYTES)
        if self.left.dtype != self.dtype:
            raise CannotDistribute(f"it multiplies {self.left.dtype} and adds {self.dtype}")
        most = MOST[self.dtype.bytes]
        wide = most if self.rows * self.columns > BUSY else 4
        self.across = Share.of(self.right, ACROSS, wide, self.dtype)
        tall = power_of_two(-(-self.rows * self.across.warps // (DOWN * LEAST_WARPS)))
        self.down = Share.of(self.left, DOWN, min(most, tall), self.dtype)
        self.warps = self.down.warps * self.across.warps
        if self.warps > MOST_WARPS:
            raise CannotDistribute(f"{self.rows} x {self.columns} sums take {self.warps} warps")
        self.left.padded = self.down.warps * self.down.extent
        self.right.padded = self.across.warps * self.across.extent
        self.find_lanes()

    def block(self) -> Block:
        """The kernel's block."""
        return self.t.kernel(self.t.rows, self._program)

    def _program(self, step: Node, held: list[Node]) -> list[Node]:
        t = self.t
        self.place_block(step)
        shape = (self.warps, WARP, self.down.count, self.across.count)
        registers = [t.memory("local", name, self.dtype, *shape) for name in ("sums", "part")]
        cleared = t.over_warps(self.warps, registers[:1], lambda m: t.over_lanes(m, self._clear))
        sums = self.sum_up(VECTOR_BYTES // self.dtype.bytes, [*cleared, registers[1]])[0]
        return t.over_warps(
            self.warps, held, lambda m: t.over_lanes(m, lambda n: self._store(n, sums))
        )

    def _row(self, i: Node) -> list[Node]:
        """Where a row of a thread's registers starts."""
        return [self.t.warp, self.t.lane, i, self.t.int(0)]

    def _clear(self, held: list[Node]) -> list[Node]:
        b = self.b
        zero = b.broadcast(
            constant(0, self.dtype), axes=(), type=line(self.dtype, self.across.count)
        )
        return self._each(self.down.count, held, lambda m, i: [b.store(m[0], zero, *self._row(i))])

    # ---- where a thread works

    def _start(self) -> tuple[Node, Node]:
        """First row and column of a thread."""
        t, b = self.t, self.b
        down, across = self.down, self.across
        row = t.times(b.div(t.warp, across.warps), down.extent)
        column = t.times(b.rem(t.warp, across.warps), across.extent)
        own_row = t.times(b.div(t.lane, ACROSS), down.lanes)
        own_column = t.times(b.rem(t.lane, ACROSS), across.lanes)
        return b.add(row, own_row), b.add(column, own_column)

    def _at(self, share: Share, start: Node, item: Node, lanes: int = 1) -> Node:
        """Where `lanes` neighbours of a thread lie; between groups lie those of other threads."""
        t, b = self.t, self.b
        step, parts = share.threads * share.lanes, share.lanes // lanes
        if parts == 1:
            return b.add(start, t.times(item, step))
        group, inside = b.div(item, parts), b.rem(item, parts)
        return b.add(start, b.add(t.times(group, step), t.times(inside, lanes)))

    def _each(
        self, count: int, held: list[Node], body: Callable[[list[Node], Node], list[Node]]
    ) -> list[Node]:
        """A loop that leaves registers where the compiler sees them."""
        if count == 1:
            return body(held, self.t.int(0))
        step = index(self.fresh("i"), count)
        return self.t.over("unroll", step, held, lambda m: body(m, step))

    # ---- products

    def multiply(
        self, shared: Sequence[Node], registers: Sequence[Node], slot: Node | None
    ) -> list[Node]:
        t = self.t
        at = [slot] if slot is not None else []

        def lanes(held: list[Node]) -> list[Node]:
            part = self._clear(held[1:])
            k = index(self.fresh("k"), self.block_depth // UNROLLED)
            (part,) = t.over("serial", k, part, lambda m: self._few(shared, at, k, m))
            return self._each(self.down.count, [held[0], part], self._add)

        return t.over_lanes(registers, lanes)

    def _few(
        self, shared: Sequence[Node], at: Sequence[Node], k: Node, held: list[Node]
    ) -> list[Node]:
        """The products of a few steps of depth."""
        t, b = self.t, self.b
        step = index(self.fresh("k"), UNROLLED)
        depth = b.add(t.times(k, UNROLLED), step)
        return t.over("unroll", step, held, lambda m: self._products(shared, at, depth, m))

    def _products(
        self, shared: Sequence[Node], at: Sequence[Node], k: Node, held: list[Node]
    ) -> list[Node]:
        """All products of a thread at one depth."""
        t, b, across = self.t, self.b, self.across
        row, column = self._start()
        vector = line(self.dtype, across.lanes)

        def one(memories: list[Node], i: Node, group: Node) -> list[Node]:
            places = [self._at(self.down, row, i), self._at(across, column, group, across.lanes)]
            left, right = (
                b.load(memory, *at, *([own, k] if operand.is_deep else [k, own]), type=type_)
                for memory, operand, own, type_ in zip(
                    shared,
                    (self.left, self.right),
                    places,
                    (TensorType(self.dtype, ()), vector),
                    strict=True,
                )
            )
            place = [t.warp, t.lane, i, t.times(group, across.lanes)]
            total = b.fma(left, right, b.load(memories[0], *place, type=vector))
            self.note(self.dot, total)
            return [b.store(memories[0], total, *place)]

        groups = across.count // across.lanes
        return self._each(
            self.down.count,
            held,
            lambda m, i: self._each(groups, m, lambda n, group: one(n, i, group)),
        )

    def _add(self, held: list[Node], i: Node) -> list[Node]:
        """A row of the sums of one block of depth, added to the total."""
        row = line(self.dtype, self.across.count)
        total, part = (self.b.load(m, *self._row(i), type=row) for m in held)
        return [self.b.store(held[0], self.b.add(total, part), *self._row(i)), held[1]]

    # ---- results

    def _store(self, held: list[Node], sums: Node) -> list[Node]:
        t, b = self.t, self.b
        row, column = self._start()
        lanes = self.result_lanes(self.across.lanes)

        def one(memories: list[Node], i: Node, item: Node) -> list[Node]:
            place = [t.warp, t.lane, i, t.times(item, lanes)]
            value = b.load(sums, *place, type=line(self.dtype, lanes))
            at_column = self._at(self.across, column, item, lanes)
            return self.finish(memories, self._at(self.down, row, i), at_column, lanes, value)

        count = self.across.count // lanes
        return self._each(
            self.down.count,
            held,
            lambda m, i: self._each(count, m, lambda n, item: one(n, i, item)),
        )
