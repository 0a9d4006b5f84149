"""The frame of products whose operands pass through shared memory block by block of depth.

Both operands keep the order in which they lie in global memory. With one stage a block is brought,
awaited and multiplied; with more, blocks that come later are copied while this one is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.warp_ops import COPIES, VECTOR_BYTES
from stack.passes.gpu_loops.frame import CannotDistribute
from stack.passes.gpu_loops.gemm import Product
from stack.passes.gpu_loops.operand import Operand, line, share
from stack.passes.tiling.loops import index

LEAST_WARPS = 4  # of a tile: a multiprocessor has as many schedulers
MOST_WARPS = 8  # of a tile: more have few sums each, and read more for every product


class Staged(Product):
    """Blocks of both operands in shared memory, `stages` of them at a time.

    Attributes:
        block_depth: elements of the contracted axes in one block.
        iterations: blocks.
        warps: that share the work.
    """

    def __init__(self, block: Block, stages: int, line_bytes: int) -> None:
        super().__init__(block)
        self.stages = stages
        self.block_depth = line_bytes // self.left.dtype.bytes
        self.iterations = -(-self.depth // self.block_depth)
        self.warps = 1

    def multiply(
        self, shared: Sequence[Node], registers: Sequence[Node], slot: Node | None
    ) -> list[Node]:
        """Registers of a warp after one block of depth, which lies at `slot`."""
        raise NotImplementedError

    def find_lanes(self) -> None:
        """How many elements one access to an operand moves. Raises CannotDistribute."""
        most = VECTOR_BYTES // self.left.dtype.bytes
        self.lanes = [operand.lanes(most) for operand in (self.left, self.right)]
        least = min(self.lanes) * self.left.dtype.bytes
        if self.stages > 1 and least < COPIES[0]:
            raise CannotDistribute(f"asynchronous copies take {COPIES[0]} bytes, not {least}")

    def sum_up(self, pad: int, registers: Sequence[Node]) -> list[Node]:
        """Registers after the whole depth.

        Args:
            pad: elements by which rows in shared memory are longer than what they hold.
            registers: memory `in local` that `multiply` adds to.
        """
        shared = [
            operand.shared(hint, operand.dtype, self.block_depth, pad, self.stages, operand.is_deep)
            for operand, hint in ((self.left, "a"), (self.right, "b"))
        ]
        work = self._pipelined if self.stages > 1 else self._plain
        return work(shared, registers)

    def _plain(self, shared: Sequence[Node], registers: Sequence[Node]) -> list[Node]:
        """One block of depth after the other: bring, wait, multiply, wait."""
        t = self.t
        iteration = index(self.fresh("t"), self.iterations)

        def body(held: list[Node]) -> list[Node]:
            filled = t.over_warps(
                self.warps,
                held[:2],
                lambda m: t.over_lanes(m, lambda n: self._bring(n, iteration, None, None)),
            )
            work = t.over_warps(self.warps, held[2:], lambda m: self.multiply(filled, m, None))
            return [*filled, *work]

        return t.over("serial", iteration, [*shared, *registers], body)[2:]

    def _pipelined(self, shared: Sequence[Node], registers: Sequence[Node]) -> list[Node]:
        """Copies of the blocks to come are on their way while one is multiplied."""
        t, b, ahead = self.t, self.b, self.stages - 1
        held = t.over_warps(self.warps, shared, self._begin)
        iteration = index(self.fresh("t"), self.iterations)

        def body(inner: list[Node]) -> list[Node]:
            waited = b.async_wait(*inner[:2], pending=ahead - 1)
            ready = [b.item(waited, index=i) for i in range(2)]
            coming = b.add(iteration, ahead)
            slot = b.rem(coming, self.stages)
            is_there = b.lt(coming, self.iterations)
            coming = b.min(coming, self.iterations - 1)

            def work(memories: list[Node]) -> list[Node]:
                filled = t.over_lanes(
                    memories[:2], lambda n: self._bring(n, coming, slot, is_there)
                )
                now = b.rem(iteration, self.stages)
                return [*filled, *self.multiply(filled, memories[2:], now)]

            return t.over_warps(self.warps, [*ready, *inner[2:]], work)

        return t.over("serial", iteration, [*held, *registers], body)[2:]

    def _begin(self, held: list[Node]) -> list[Node]:
        """The first blocks of depth, a group of copies for each; missing ones are zeros."""
        t = self.t
        for stage in range(self.stages - 1):
            is_there = None if stage < self.iterations else constant(False)
            iteration, slot = t.int(min(stage, self.iterations - 1)), t.int(stage)

            def bring(
                memories: list[Node],
                iteration: Node = iteration,
                slot: Node = slot,
                is_there: Node | None = is_there,
            ) -> list[Node]:
                return self._bring(memories, iteration, slot, is_there)

            held = t.over_lanes(held, bring)
        return held

    def _bring(
        self, held: Sequence[Node], iteration: Node, slot: Node | None, is_there: Node | None
    ) -> list[Node]:
        """One thread's share of a block of both operands."""
        start = self.t.times(iteration, self.block_depth)
        return [
            self._bring_one(operand, lanes, memory, start, slot, is_there)
            for operand, lanes, memory in zip(
                (self.left, self.right), self.lanes, held, strict=True
            )
        ]

    def _bring_one(
        self,
        operand: Operand,
        lanes: int,
        memory: Node,
        start: Node,
        slot: Node | None,
        is_there: Node | None,
    ) -> Node:
        t, b = self.t, self.b
        iterations, item = share(t, operand.vectors(self.block_depth, lanes), self.warps)
        step = lanes if operand.is_deep else 1
        is_ragged = bool(self.depth % self.block_depth)

        def one(held: Node, iteration: Node) -> Node:
            own, inner = operand.place(item(iteration), self.block_depth, lanes)
            depth = b.add(start, inner)
            inside = b.lt(depth, self.depth) if is_ragged else None
            safe = b.min(depth, self.depth - step) if is_ragged else depth
            place = operand.at(operand.inside(own, lanes), safe, self.start_of)
            target = [own, inner] if operand.is_deep else [inner, own]
            if slot is not None:
                masks = [m for m in (is_there, inside) if m is not None]
                mask = [b.and_(*masks)] if len(masks) == 2 else masks
                args = [held, operand.memory, slot, *target, *place, *mask]
                return b.op("async_copy", args, {"lanes": lanes})
            value = b.load(operand.memory, *place, type=line(operand.dtype, lanes))
            if inside is not None:
                value = b.select(inside, value, constant(0, operand.dtype))
            return b.store(held, value, *target)

        if iterations == 1:
            return one(memory, t.int(0))
        iteration = index(self.fresh("c"), iterations)
        return t.over("unroll", iteration, [memory], lambda m: [one(m[0], iteration)])[0]
