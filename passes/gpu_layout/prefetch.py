"""Prefetching: loops copy the operands of matmuls to shared memory some iterations ahead.

Each operand has a ring of slots there: one is read while others are filled. The copies are
asynchronous and need no registers. An iteration waits for its own operands, then starts the copies
for a later iteration, then multiplies; so it needs one barrier. If only the next iteration needs
the sums, it starts before they are complete: then the slot of the previous iteration is in use too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from stack.ir.builder import constant, remade
from stack.ir.node import Block, Node
from stack.ir.traits import contractions, is_contraction, is_input
from stack.ir.types import I32
from stack.ir.warp_ops import COPIES, VECTOR_BYTES
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.contiguity import sizes_of
from stack.passes.gpu_layout.global_memory import GlobalMemory
from stack.passes.gpu_layout.instruction_layouts import Instructions, Matmul, swizzle_of
from stack.passes.gpu_layout.share import ThreadValue
from stack.passes.gpu_layout.shared_memory import StagedMatrix, padding
from stack.passes.gpu_layout.values import Values
from stack.target import Gpu


@dataclass(frozen=True)
class Plan:
    """The prefetched operands of one loop.

    Attributes:
        loads: the operands.
        distance: iterations from the start of a copy to its use; 0 for no prefetching.
        slots: tiles of each operand that are in shared memory at the same time.
        overlapped: sums that only the next iteration needs, which starts before they are complete,
            and how many instructions may be incomplete then.
    """

    loads: Sequence[Node] = ()
    distance: int = 0
    slots: int = 0
    overlapped: Mapping[Node, int] = field(default_factory=dict[Node, int])


@dataclass(frozen=True)
class RingBuffers:
    """The shared memory of the operands that a loop prefetches, at three points of the program.

    Attributes:
        before: before the loop, after the first copies were started.
        carried: at the start of an iteration.
        after: after an iteration started its copies.
    """

    before: Sequence[Node] = ()
    carried: Sequence[Node] = ()
    after: Sequence[Node] = ()


@dataclass(frozen=True)
class Prefetch:
    """Plans and builds the copies of the loops of one kernel.

    Attributes:
        stages: iterations whose operands are in shared memory at the same time, at most.
    """

    tiles: ThreadBuilder
    memory: GlobalMemory
    values: Values
    instructions: Instructions
    stages: int
    gpu: Gpu

    def plan(self, block: Block) -> Plan:
        """Decides which operands a loop prefetches: none without room in shared memory."""
        loads = self._loads(block)
        if not loads:
            return Plan()
        overlapped = self._overlapped(block, loads)
        more = 2 if overlapped else 1  # slots beyond the distance
        most = self._free_bytes(block, loads) // sum(map(self._slot_bytes, loads))
        iterations = int(block.params[0].attrs["extent"])
        slots = min(self.stages - 1 + more, most, iterations - 1 + more)
        return Plan(loads, slots - more, slots, overlapped) if slots > more else Plan()

    def row(self, load: Node) -> tuple[int, int]:
        """Returns the row pitch of an operand in shared memory, in elements, and its swizzle."""
        _, columns = sizes_of(load.tensor)
        if self.instructions.has_warpgroups and load.dtype.bits == 16:
            return columns, swizzle_of(columns * load.dtype.bytes)
        return columns + padding(load.dtype), 0

    def _loads(self, block: Block) -> list[Node]:
        """The loads of a loop's body that are operands of matmuls and of nothing else."""
        index, *carried = block.params
        used = {a for n in block.nodes for a in n.args if not is_contraction(n)}
        used.update(block.results)
        operands = dict.fromkeys(a for n in contractions(block.nodes) for a in n.args)
        return [
            n
            for n in operands
            if n.op == "load"
            and n not in used
            and index in n.vars
            and n.vars.isdisjoint(carried)
            and is_input(n.args[0])
            and self._copy_bytes(n) in COPIES
        ]

    def _copy_bytes(self, load: Node) -> int:
        """Returns how many bytes one asynchronous copy instruction moves for a load."""
        return min(VECTOR_BYTES, self.memory.contiguity.vectors(load)[-1] * load.dtype.bytes)

    def _overlapped(self, block: Block, loads: Sequence[Node]) -> dict[Node, int]:
        """Returns the sums of a loop's warpgroup matmuls, if only the next iteration needs all of
        them, each with the number of its instructions that may still run then; empty otherwise.
        """
        matmuls = contractions(block.nodes)
        sums = [n for n in block.nodes if n in self.instructions.accumulations]
        used = {a for n in block.nodes for a in n.args}
        fits = (
            self.instructions.has_warpgroups
            and len(sums) == len(matmuls)
            and all(a in loads for m in matmuls for a in m.args)
            and all(n in block.results and n not in used for n in sums)
        )
        return dict.fromkeys(sums, len(sums)) if fits else {}

    def _free_bytes(self, block: Block, loads: Sequence[Node]) -> int:
        """Returns the shared memory that the operands that are not prefetched leave free."""
        others = {
            a
            for n in contractions(block.nodes)
            for a in n.args
            if a not in loads
            and (a.op == "load" or not self.instructions.uses_matrix_units(Matmul(n)))
        }
        used = sum(prod(sizes_of(n.tensor)) * n.dtype.bytes for n in others)
        return self.gpu.operand_bytes - used

    def _slot_bytes(self, load: Node) -> int:
        return sizes_of(load.tensor)[0] * self.row(load)[0] * load.dtype.bytes

    def start(
        self, plan: Plan, index: Node, limits: Sequence[Node], around: Sequence[Node]
    ) -> RingBuffers:
        """Starts the copies of the first iterations, and in each iteration those of a later one.

        Args:
            index: the index of the loop.
            limits: its first value and the one after the last; empty for its whole extent.
            around: the indices of the loops around: each run of the loop has memory of its own, as
                the run before overwrote the first slots.
        """
        if not plan.distance:
            return RingBuffers()
        b, count, extent = self.tiles.b, len(plan.loads), int(index.attrs["extent"])
        first, end = limits or [constant(n, index.dtype) for n in (0, extent)]

        def rows(step: Node) -> list[ThreadValue]:
            slot = b.rem(b.sub(step, first), plan.slots)
            return [self._row(load, slot) for load in plan.loads]

        def copies(memories: Sequence[Node], step: Node) -> list[Node]:
            done = remade(plan.loads, {index: step})
            loads = [done[load] for load in plan.loads]
            exists = b.lt(step, end)
            parts = zip(loads, memories, rows(step), strict=True)
            return [self.memory.copy(*part, exists) for part in parts]

        memories = [self._alloc(load, plan.slots, around) for load in plan.loads]
        for i in range(plan.distance):
            memories = copies(memories, b.add(first, i) if i else first)
            if i < plan.distance - 1:  # iterations in order: a wait counts groups of copies
                memories = self._wait(memories, (i + 1) * count)
        carried = [Node("var", (), {"name": self.tiles.fresh("ahead")}, m.type) for m in memories]
        arrived = self._wait(carried, (plan.distance - 1) * count)
        after = copies(arrived, b.add(index, plan.distance))
        for load, memory, row in zip(plan.loads, after, rows(index), strict=True):
            self.values.add_prefetched(load, StagedMatrix(memory, row))
        return RingBuffers(memories, carried, after)

    def _alloc(self, load: Node, slots: int, around: Sequence[Node]) -> Node:
        """Allocates shared memory for `slots` copies of a tile, stacked along the rows."""
        rows = slots * sizes_of(load.tensor)[0]
        pitch, swizzle = self.row(load)
        return self.memory.shared.alloc(load.dtype, rows, pitch, inside=around, swizzle=swizzle)

    def _wait(self, memories: Sequence[Node], pending: int) -> list[Node]:
        """Waits for all but the newest `pending` groups of copies. Returns the memories."""
        made = self.tiles.b.op("async_wait", memories, {"pending": pending})
        if len(memories) == 1:
            return [made]
        return [self.tiles.b.item(made, index=i) for i in range(len(memories))]

    def _row(self, load: Node, slot: Node) -> ThreadValue:
        """Returns the first row of slot number `slot` in the shared memory of an operand."""
        row = self.tiles.b.mul(slot, sizes_of(load.tensor)[0])
        if row.dtype is not I32:
            row = self.tiles.b.cast(row, type=row.tensor.with_dtype(I32))
        return self.tiles.per_thread(ThreadValue(row))
