"""Prefetching: loops copy the operands of matmuls to shared memory some iterations ahead.

Each operand has a ring of slots there: one is read while others are filled. The copies are
asynchronous and need no registers. An iteration waits for its own operands, then starts the copies
for a later iteration, then multiplies; so it needs one barrier. If only the next iteration needs
the sums, it starts before they are complete: then the slot of the previous iteration is in use too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.types import I32
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.contiguity import sizes_of
from stack.passes.gpu_layout.global_memory import GlobalMemory
from stack.passes.gpu_layout.operands import Operands, Staged
from stack.passes.gpu_layout.prefetch_plan import Plan, Planner
from stack.passes.gpu_layout.share import ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory


@dataclass(frozen=True)
class Steps:
    """The iterations of a loop.

    Attributes:
        index: the index of the loop.
        first: its first value.
        end: the value after the last.
    """

    index: Node
    first: Node
    end: Node

    @staticmethod
    def of(index: Node, limits: Sequence[Node]) -> Steps:
        """The iterations within limits; without any, all."""
        if limits:
            return Steps(index, *limits)
        end = int(index.attrs["extent"])
        return Steps(index, constant(0, index.dtype), constant(end, index.dtype))


@dataclass(frozen=True)
class Rings:
    """The shared memory of prefetched operands, as a loop carries it.

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
    """Builds the copies of the loops of one kernel."""

    tiles: ThreadBuilder
    shared: SharedMemory
    memory: GlobalMemory
    operands: Operands
    planner: Planner

    def start(self, plan: Plan, steps: Steps, around: Sequence[Node]) -> Rings:
        """Starts the copies of the first iterations, and in each iteration those of a later one.

        Args:
            around: the indices of the loops around: each run of the loop has memory of its own, as
                the run before overwrote the first slots.
        """
        b, distance, count = self.tiles.b, plan.distance, len(plan.loads)
        if not distance:
            return Rings()
        memories = [self._alloc(load, plan.slots, around) for load in plan.loads]
        for i in range(distance):
            step = b.add(steps.first, i) if i else steps.first
            memories = self._copies(plan, memories, steps, step)
            if i < distance - 1:  # one iteration after another, as waits count groups of copies
                memories = self._wait(memories, (i + 1) * count)
        carried = [Node("var", (), {"name": self.tiles.fresh("ahead")}, m.type) for m in memories]
        arrived = self._wait(carried, (distance - 1) * count)
        after = self._copies(plan, arrived, steps, b.add(steps.index, distance))
        for load, memory in zip(plan.loads, after, strict=True):
            row = self._row(load, plan.slots, steps, steps.index)
            self.operands.add_prefetched(load, Staged(memory, row))
        return Rings(memories, carried, after)

    def _alloc(self, load: Node, slots: int, around: Sequence[Node]) -> Node:
        """Shared memory with all slots of an operand, one below the other."""
        rows = slots * sizes_of(load.tensor)[0]
        pitch, swizzle = self.planner.row(load)
        return self.shared.alloc(load.dtype, rows, pitch, inside=around, swizzle=swizzle)

    def _wait(self, memories: Sequence[Node], pending: int) -> list[Node]:
        """Memories after all groups of copies have arrived but the newest `pending` ones."""
        made = self.tiles.b.op("async_wait", memories, {"pending": pending})
        if len(memories) == 1:
            return [made]
        return [self.tiles.b.item(made, index=i) for i in range(len(memories))]

    def _copies(self, plan: Plan, memories: Sequence[Node], steps: Steps, step: Node) -> list[Node]:
        """The memories after the copies for an iteration were started."""
        pairs = zip(plan.loads, memories, strict=True)
        return [self._copy(load, memory, plan.slots, steps, step) for load, memory in pairs]

    def _copy(self, load: Node, memory: Node, slots: int, steps: Steps, step: Node) -> Node:
        """The memory after a copy was started; of zeros if there is no such iteration."""
        row = self._row(load, slots, steps, step)
        exists = self.tiles.b.lt(step, steps.end)
        return self.memory.copy(_substituted(load, {steps.index: step}, {}), memory, row, exists)

    def _row(self, load: Node, slots: int, steps: Steps, step: Node) -> ThreadValue:
        """The row at which the slot of an iteration begins."""
        b = self.tiles.b
        slot = b.rem(b.sub(step, steps.first), slots)
        row = b.mul(slot, sizes_of(load.tensor)[0])
        if row.dtype is not I32:
            row = b.cast(row, type=row.tensor.with_dtype(I32))
        return self.tiles.per_thread(ThreadValue(row))


def _substituted(node: Node, swap: Mapping[Node, Node], done: dict[Node, Node]) -> Node:
    """A value with other nodes in place of some variables."""
    if node in swap:
        return swap[node]
    if node.vars.isdisjoint(swap):
        return node
    if node not in done:
        args = [_substituted(a, swap, done) for a in node.args]
        done[node] = Node(node.op, args, node.attrs, node.type, node.blocks)
    return done[node]
