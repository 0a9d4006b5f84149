"""Instructions that multiply short floats and sum in f32: what products on a CPU are made of.

Each multiplies neighbours along the contracted axis at once, which lie together in both operands:
the right one is packed so. They round once for each pair and take denormals as zeros, as the
manuals say: Intel, "Architecture Instruction Set Extensions and Future Features", TDPBF16PS and
VDPBF16PS.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mma:
    """One instruction.

    Attributes:
        name: of the instruction.
        intrinsic: LLVM's function of it.
        feature: what a CPU that has it lists, as LLVM calls it.
        operands: element type of what it multiplies.
        group: neighbours along the contracted axis that are multiplied and summed first.
        depth: contracted elements that one instruction takes.
        rows: of sums; 1 where it works on vectors.
        lanes: columns of sums.
    """

    name: str
    intrinsic: str
    feature: str
    operands: str
    group: int
    depth: int
    rows: int
    lanes: int

    def divides(self, rows: int, lanes: int, depth: int) -> bool:
        """Whether it does so many sums of so many products without a rest."""
        return rows % self.rows == 0 and lanes % self.lanes == 0 and depth % self.depth == 0


# the fastest first
MMAS = (
    Mma(
        name="tdpbf16ps",
        intrinsic="llvm.x86.tdpbf16ps",
        feature="amx-bf16",
        operands="bf16",
        group=2,
        depth=32,
        rows=16,
        lanes=16,
    ),
    Mma(
        name="vdpbf16ps",
        intrinsic="llvm.x86.avx512bf16.dpbf16ps.512",
        feature="avx512bf16",
        operands="bf16",
        group=2,
        depth=2,
        rows=1,
        lanes=16,
    ),
)
