"""Operands of matmuls in shared memory: prefetched by a loop, or stored there when needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.ir.node import Node
from stack.passes.gpu_layout.share import ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory
from stack.passes.gpu_layout.values import Values


@dataclass(frozen=True)
class StagedMatrix:
    """A matrix in shared memory.

    Attributes:
        row: the row of the memory at which the matrix begins; None for the first.
    """

    memory: Node
    row: ThreadValue | None = None


@dataclass(frozen=True)
class Operands:
    """The operands of one kernel that are in shared memory."""

    values: Values
    shared: SharedMemory
    _prefetched: dict[Node, StagedMatrix] = field(default_factory=dict, init=False)
    _swizzled: dict[Node, StagedMatrix] = field(default_factory=dict, init=False)

    def add_prefetched(self, load: Node, staged: StagedMatrix) -> None:
        """Records that a loop prefetches a tile, so that its load is not built again."""
        self._prefetched[load] = staged

    def is_prefetched(self, node: Node) -> bool:
        return node in self._prefetched

    def padded(self, node: Node) -> StagedMatrix:
        """Returns a matmul operand in shared memory with padded rows, for multiply-adds of threads
        and matrix instructions of warps. It is stored anew for each matmul that uses it.
        """
        return self._prefetched.get(node) or StagedMatrix(self.shared.stored(self._tile(node)))

    def swizzled(self, node: Node) -> StagedMatrix:
        """Returns a matmul operand in shared memory with swizzled rows, as instructions of
        warpgroups read it. It is stored once for all matmuls that use it.
        """
        if node in self._prefetched:
            return self._prefetched[node]
        if node not in self._swizzled:
            self._swizzled[node] = StagedMatrix(
                self.shared.stored(self._tile(node), is_swizzled=True)
            )
        return self._swizzled[node]

    def _tile(self, node: Node) -> ThreadValue:
        return self.values.built(node) or self.values.in_own_layout(node)
