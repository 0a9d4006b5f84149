"""CPU matrix instructions: they multiply short numbers and accumulate in 32 bits.

Each multiplies several neighbours along the contracted axis at once. These must be contiguous in
both operands, so the right operand is packed. Float instructions round once per pair and treat
denormals as zero; integer instructions are exact except for wraparound. Source: Intel,
"Architecture Instruction Set Extensions and Future Features", TDPBF16PS, VDPBF16PS, TDPBSSD and
VPDPBUSD.
"""

from __future__ import annotations

from dataclasses import dataclass

Types = tuple[str, str, str]  # element types of both operands and of the accumulator

LEAST_PART = 1 / 4  # of its rows: with fewer, an instruction is no faster than vector arithmetic


@dataclass(frozen=True)
class Mma:
    """One matrix instruction.

    Attributes:
        name: name of the instruction.
        intrinsic: its LLVM intrinsic.
        feature: the CPU feature that it needs, by LLVM's name.
        operands: element type of the operands.
        sums: element type of the accumulator.
        group: neighbours along the contracted axis that are multiplied and summed first.
        depth: contracted elements of one instruction.
        rows: rows of the accumulator; 1 for vector instructions.
        lanes: columns of the accumulator.
        offset: number to add to the left operand, which the instruction treats as unsigned.
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
        """The element types of its operands and accumulator."""
        return self.operands, self.operands, self.sums

    def divides(self, rows: int, lanes: int, depth: int) -> bool:
        """True if the instruction computes a tile of this size without remainder."""
        is_whole = rows % self.rows == 0 or self.takes_part(rows)
        return is_whole and lanes % self.lanes == 0 and self._divides_depth(depth)

    def covers(self, rows: int, lanes: int, depth: int) -> bool:
        """True if whole instructions cover a tile of this size. The last instruction may overlap
        the one before, so the tile need not be a multiple of the instruction.
        """
        is_tall = rows >= self.rows or self.takes_part(rows)
        return is_tall and lanes >= self.lanes and self._divides_depth(depth)

    def _divides_depth(self, depth: int) -> bool:
        """True if the depth divides evenly into more than one group.

        A single group is excluded: such an operand looks like rows that are contiguous along the
        depth.
        """
        return depth % self.depth == 0 and depth > self.group

    def takes_part(self, rows: int) -> bool:
        """True if a tile has fewer rows than the instruction, but more than the share `LEAST_PART`
        of them: then it is profitable to leave the other rows of the instruction idle.
        """
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
