"""Decides which operands of matmuls a loop prefetches, and how many iterations ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from stack.ir.node import Block, Node
from stack.ir.traits import contractions, is_contraction, is_input
from stack.ir.warp_ops import COPIES, VECTOR_BYTES
from stack.passes.gpu_layout.contiguity import Contiguity, sizes_of
from stack.passes.gpu_layout.instruction_layouts import swizzle_of
from stack.passes.gpu_layout.instructions import Instructions
from stack.passes.gpu_layout.matmul import Matmul
from stack.passes.gpu_layout.shared_memory import padding
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
class Planner:
    """Builds the plans of one kernel.

    Attributes:
        stages: iterations whose operands are in shared memory at the same time, at most.
    """

    instructions: Instructions
    contiguity: Contiguity
    stages: int
    gpu: Gpu

    def plan(self, block: Block) -> Plan:
        """Decides which operands a loop prefetches, from its body. The plan has no operands if the
        loop runs once or shared memory is too small.
        """
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
        return min(VECTOR_BYTES, self.contiguity.vectors(load)[-1] * load.dtype.bytes)

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
