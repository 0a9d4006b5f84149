"""Matrix products on tensor cores: the last two rungs of the ladder.

Blocks of both operands lie in shared memory, in the order in which they lie in global memory; a
warp multiplies tiles of them with matrix instructions and keeps the sums in its registers. With
more than one stage, blocks that come later are copied while this one is multiplied. Sums leave by
way of shared memory, sixteen rows at a time, so that what follows the product is done on short
vectors along rows, and stores are wide.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.types import F32, TensorType
from stack.ir.warp_ops import MATRIX, WARP
from stack.passes.gpu_loops.frame import CannotDistribute
from stack.passes.gpu_loops.operand import Operand, line
from stack.passes.gpu_loops.staged import LEAST_WARPS, MOST_WARPS, Staged
from stack.passes.tiling.loops import index

DEPTH = 32  # of a block: two instructions, before the next one is awaited
PAD = 8  # elements: rows of eight matrices start in different banks
WARP_TILE = 1024  # elements from which a warp reads few operands for each product
RESULT_LANES = 4  # of a vector of sums that leaves: 16 bytes


class Tensor(Staged):
    """Matrix instructions; `stages` blocks of depth are in shared memory at a time."""

    def __init__(self, block: Block, stages: int, warps: int = 0) -> None:
        super().__init__(block, stages, DEPTH * 2)
        if self.left.dtype.bits != 16 or self.dtype != F32:
            raise CannotDistribute(f"tensor cores take 16-bit floats, not {self.left.dtype}")
        self.left.padded = -(-self.rows // MATRIX) * MATRIX
        self.right.padded = -(-self.columns // MATRIX) * MATRIX
        self.down, self.across = _split(self.left.padded, self.right.padded, warps)
        self.warps = self.down * self.across
        self.tall = self.left.padded // self.down  # rows of a warp
        self.wide = self.right.padded // self.across
        self.find_lanes()

    def block(self) -> Block:
        """The kernel's block."""
        return self.t.kernel(self.t.rows, self._program)

    def _program(self, step: Node, held: list[Node]) -> list[Node]:
        t = self.t
        self.place_block(step)
        shape = (self.warps, self.tall // MATRIX, MATRIX, self.wide)
        sums = t.memory("local", "sums", F32, *shape)
        sums = t.over_warps(self.warps, [sums], lambda m: [self._clear(m[0])])[0]
        sums = self.sum_up(PAD, [sums])[0]
        staged = t.memory("shared", "strip", F32, self.warps, MATRIX, self.wide + RESULT_LANES)
        after = t.over_warps(self.warps, [staged, *held], lambda m: self._leave(m, sums))
        return after[1:]

    def _clear(self, sums: Node) -> Node:
        t = self.t
        tile = TensorType(F32, (MATRIX, self.wide), "tile")
        zero = self.b.broadcast(constant(0, F32), axes=(), type=tile)
        i = index(self.fresh("i"), self.tall // MATRIX)
        corner = (t.int(0), t.int(0))
        return t.over(
            "unroll", i, [sums], lambda m: [self.b.store(m[0], zero, t.warp, i, *corner)]
        )[0]

    # ---- products

    def multiply(
        self, shared: Sequence[Node], registers: Sequence[Node], slot: Node | None
    ) -> list[Node]:
        t, b = self.t, self.b
        row, column = self._corner()
        i = index(self.fresh("i"), self.tall // MATRIX)
        corner = (t.warp, i, t.int(0), t.int(0))
        first = self._tile(self.left, shared[0], b.add(row, b.mul(i, MATRIX)), MATRIX, slot)
        second = self._tile(self.right, shared[1], column, self.wide, slot)
        rule = f"{'m k' if self.left.is_deep else 'k m'}, {'n k' if self.right.is_deep else 'k n'}"
        tile = TensorType(F32, (MATRIX, self.wide), "tile")

        def body(held: list[Node]) -> list[Node]:
            before = b.load(held[0], *corner, type=tile)
            total = b.mma(first, second, before, rule=f"{rule} -> m n")
            self.note(self.dot, total)
            return [b.store(held[0], total, *corner)]

        return t.over("unroll", i, registers, body)

    def _corner(self) -> tuple[Node, Node]:
        """Where the tile of a warp starts."""
        t, b = self.t, self.b
        if self.across == 1:
            return t.times(t.warp, self.tall), t.int(0)
        row = t.int(0) if self.down == 1 else b.mul(b.div(t.warp, self.across), self.tall)
        return row, b.mul(b.rem(t.warp, self.across), self.wide)

    def _tile(
        self, operand: Operand, memory: Node, start: Node, rows: int, slot: Node | None
    ) -> Node:
        """A tile of a warp from shared memory, `rows` of the operand and all depth."""
        zero = self.t.int(0)
        place = [start, zero] if operand.is_deep else [zero, start]
        shape = (rows, DEPTH) if operand.is_deep else (DEPTH, rows)
        type_ = TensorType(operand.dtype, shape, "tile")
        return self.b.load(memory, *([slot] if slot is not None else []), *place, type=type_)

    # ---- results

    def _leave(self, held: list[Node], sums: Node) -> list[Node]:
        """Sixteen rows of sums at a time to shared memory, and from there by short vectors."""
        t, b = self.t, self.b
        i = index(self.fresh("i"), self.tall // MATRIX)
        tile = TensorType(F32, (MATRIX, self.wide), "tile")
        lanes = self.result_lanes(RESULT_LANES)
        count = MATRIX * self.wide // lanes
        row, column = self._corner()
        iterations = -(-count // WARP)

        def strip(memories: list[Node]) -> list[Node]:
            value = b.load(sums, t.warp, i, t.int(0), t.int(0), type=tile)
            staged = b.store(memories[0], value, t.warp, t.int(0), t.int(0))
            return [staged, *t.over_lanes(memories[1:], lambda m: rows(m, staged))]

        def rows(memories: list[Node], staged: Node) -> list[Node]:
            iteration = index(self.fresh("c"), iterations)
            if iterations == 1:
                return vector(memories, staged, t.lane)
            item = b.add(b.mul(iteration, WARP), t.lane)
            return t.over("unroll", iteration, memories, lambda m: vector(m, staged, item))

        def vector(memories: list[Node], staged: Node, item: Node) -> list[Node]:
            down = b.div(item, self.wide // lanes)
            along = t.times(b.rem(item, self.wide // lanes), lanes)
            value = b.load(staged, t.warp, down, along, type=line(F32, lanes))
            at_row = b.add(b.add(row, b.mul(i, MATRIX)), down)
            return self.finish(memories, at_row, b.add(column, along), lanes, value)

        return t.over("unroll", i, held, strip)


def warp_grids(rows: int, columns: int) -> list[tuple[int, int]]:
    """Warps below and beside each other that divide a tile into matrices."""
    counts = (1, 2, 4, 8)
    return [
        (down, across)
        for down in counts
        for across in counts
        if not rows % (down * MATRIX) and not columns % (across * MATRIX)
    ]


def _split(rows: int, columns: int, warps: int) -> tuple[int, int]:
    """Warps below and beside each other: so many, or 0 for those that have enough to do; tiles
    near to square."""
    most = warps or max(LEAST_WARPS, min(MOST_WARPS, rows * columns // WARP_TILE))
    choices = [c for c in warp_grids(rows, columns) if c[0] * c[1] <= most]
    return max(choices, key=lambda c: (c[0] * c[1], -(rows // c[0] + columns // c[1]), -c[0]))
