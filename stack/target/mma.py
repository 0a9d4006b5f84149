"""Instructions that multiply short numbers and sum in 32 bits: what products on a CPU are made of.

Each multiplies neighbours along the contracted axis at once, which lie together in both operands:
the right one is packed so. Those of floats round once for each pair and take denormals as zeros,
those of integers are exact but for wrapping around, as the manuals say: Intel, "Architecture
Instruction Set Extensions and Future Features", TDPBF16PS, VDPBF16PS, TDPBSSD and VPDPBUSD.
"""

from __future__ import annotations

from dataclasses import dataclass

Types = tuple[str, str, str]  # element types of both operands of a product, and of its sums

LEAST_PART = 1 / 4  # of its rows: with fewer, an instruction is no faster than other arithmetic


@dataclass(frozen=True)
class Mma:
    """One instruction.

    Attributes:
        name: of the instruction.
        intrinsic: LLVM's function of it.
        feature: what a CPU that has it lists, as LLVM calls it.
        operands: element type of what it multiplies.
        sums: that of what it adds to.
        group: neighbours along the contracted axis that are multiplied and summed first.
        depth: contracted elements that one instruction takes.
        rows: of sums; 1 where it works on vectors.
        lanes: columns of sums.
        offset: what the left operand has to be raised by, which the instruction takes as unsigned.
    """

    name: str
    intrinsic: str
    feature: str
    operands: str
    sums: str
    group: int
    depth: int
    rows: int
    lanes: int
    offset: int = 0

    @property
    def types(self) -> Types:
        """Of the products that it does."""
        return self.operands, self.operands, self.sums

    def divides(self, rows: int, lanes: int, depth: int) -> bool:
        """Whether it does so many sums of so many products without a rest."""
        is_whole = rows % self.rows == 0 or self.takes_part(rows)
        return is_whole and lanes % self.lanes == 0 and self._divides_depth(depth)

    def covers(self, rows: int, lanes: int, depth: int) -> bool:
        """The same with whole tiles, the last of which may start early."""
        is_tall = rows >= self.rows or self.takes_part(rows)
        return is_tall and lanes >= self.lanes and self._divides_depth(depth)

    def _divides_depth(self, depth: int) -> bool:
        """One group alone is none: as an operand it looks like rows that lie along the depth."""
        return depth % self.depth == 0 and depth > self.group

    def takes_part(self, rows: int) -> bool:
        """Whether so many rows are a part of what it does, and enough of it."""
        return LEAST_PART * self.rows < rows < self.rows


# the fastest first
MMAS = (
    Mma(
        name="tdpbf16ps",
        intrinsic="llvm.x86.tdpbf16ps",
        feature="amx-bf16",
        operands="bf16",
        sums="f32",
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
        sums="f32",
        group=2,
        depth=2,
        rows=1,
        lanes=16,
    ),
    Mma(
        name="tdpbssd",
        intrinsic="llvm.x86.tdpbssd",
        feature="amx-int8",
        operands="i8",
        sums="i32",
        group=4,
        depth=64,
        rows=16,
        lanes=16,
    ),
    Mma(
        name="vpdpbusd",
        intrinsic="llvm.x86.avx512.vpdpbusd.512",
        feature="avx512vnni",
        operands="i8",
        sums="i32",
        group=4,
        depth=4,
        rows=1,
        lanes=16,
        offset=128,
    ),
)
