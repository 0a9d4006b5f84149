"""threads: let threads compute a matmul by fused multiply-adds, and choose the sums of each.

    kernel(...) {warps=8, ...}      threads 8 8      kernel(...) {threads=[8, 8], warps=8, ...}

Each thread computes a block of sums in registers. With `lanes=columns`, the lanes of a warp are
along the columns alone, a sum each. With `operands=global`, threads load operands from global
memory where they use them; by default a block of them is copied to shared memory first. Legal for a
kernel with matrix products. For kernels of CUDA C++ only: Triton chooses by itself.

Source: register tiling, as in V. Volkov and J. W. Demmel, Benchmarking GPUs to tune dense linear
algebra (SC 2008).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.passes.steps.step import Step
from stack.target import Gpu, Target

SIDES = ("", "rows", "columns")
MEMORY = ("shared", "global")


@dataclass(frozen=True)
class Threads(Step, name="threads", only=Gpu):
    """Compute matmuls by fused multiply-adds of threads.

    Attributes:
        rows: rows of sums of a thread.
        columns: columns of sums of a thread.
        lanes: `rows` or `columns` to put the lanes of a warp along that axis alone.
        operands: the memory that threads load operands from: `shared` or `global`.
    """

    rows: int = 0
    columns: int = 0
    lanes: str = ""
    operands: str = "shared"

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if min(self.rows, self.columns) < 0 or not (self.rows or self.columns or self.lanes):
            yield f"{self.rows} x {self.columns} sums: a thread has at least 1 row or 1 column"
        if self.lanes not in SIDES:
            yield f"lanes={self.lanes}: lanes are along rows or columns"
        if self.operands not in MEMORY:
            yield f"operands={self.operands}: operands are in {' or '.join(MEMORY)} memory"
        if not any(map(is_contraction, kernel.blocks[0].all_nodes)):
            yield "there is no matrix product: `tensorize` before"

    def apply(self, kernel: Node) -> Node:
        own: dict[str, object] = {"threads": (self.rows, self.columns)}
        own |= {"lanes": self.lanes} if self.lanes else {}
        own |= {"operands": self.operands} if self.operands != MEMORY[0] else {}
        return kernel.rebuilt(attrs={**kernel.attrs, **own})
