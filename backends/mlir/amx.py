"""The micro-kernel of a dot in AMX: tiles of sums in registers of 16 rows of 64 bytes.

Two by two tiles of sums are under way, so that each tile of an operand that is read is multiplied
twice. Registers are named, not allocated: nothing else in a kernel uses them. All are whole; what
tiles do not divide, the passes give to another instruction. Sums go to memory, row by row.
Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stack.ir.node import Node
from stack.ir.types import F32
from stack.target import Mma

from .elementwise import Unprintable
from .micro_kernel import Operands
from .mma import mma_of
from .views import View, at, loop, step

if TYPE_CHECKING:
    from .printer import Printer

REGISTERS = 8
ROWS, ROW_BYTES = 16, 64  # of a register
LAYOUT = 64  # bytes that say what shape registers have: a version, then widths and rows
WIDTHS, HEIGHTS = 16, 48  # where in it
BLOCK = 2  # tiles of sums below and beside each other
DEPTH = 8  # steps of the depth after which sums wait in memory: operands stay in the first cache
RELEASE = 'llvm.call_intrinsic "llvm.x86.tilerelease"() : () -> ()'


def configure(p: Printer) -> None:
    """All registers whole, before everything else; they are released at the end."""
    if p.has_tiles:
        return
    p.has_tiles = True
    layout = [1, *[0] * (LAYOUT - 1)]
    layout[WIDTHS : WIDTHS + 2 * REGISTERS : 2] = [ROW_BYTES] * REGISTERS
    layout[HEIGHTS : HEIGHTS + REGISTERS] = [ROWS] * REGISTERS
    p.reserve("%tiles", LAYOUT, "i8")
    p.top += [
        f"  %layout = arith.constant dense<{layout}> : vector<{LAYOUT}xi8>",
        f"  llvm.store %layout, %tiles : vector<{LAYOUT}xi8>, !llvm.ptr",
        '  llvm.call_intrinsic "llvm.x86.ldtilecfg"(%tiles) : (!llvm.ptr) -> ()',
    ]


def store_sums(p: Printer, node: Node, target: View) -> None:
    """Write a dot into memory of its sums, by an instruction with registers of its own."""
    mma = mma_of(node, p.cpu)
    assert mma is not None
    _Tiles(p, node, mma).store(target)


class _Tiles(Operands):
    """Sums in tiles of AMX: a few at a time, over a loop for each contracted axis."""

    def __init__(self, p: Printer, node: Node, mma: Mma) -> None:
        super().__init__(p, node)
        self.mma = mma
        self.axes.pop()  # of neighbours
        configure(p)

    def store(self, target: View) -> None:
        """All sums: for each block of the depth, what it adds to them."""
        p, mma = self.p, self.mma
        if target.strides[1] != 1:
            raise Unprintable("sums whose lanes are apart in memory")
        steps = self.axes[-1][1] // (mma.depth // mma.group)
        blocks = -(-steps // DEPTH) if DEPTH and len(self.axes) == 1 else 1
        first = steps - (blocks - 1) * DEPTH
        self._blocks(self.a.base, self.b.base, target, first, is_first=True)
        if blocks == 1:
            return

        def more(k: str) -> None:
            left = self._further(self.a, self.a_stride, first, k)
            right = self._further(self.b, self.b_stride, first, k)
            self._blocks(left, right, target, DEPTH, is_first=False)

        loop(p, blocks - 1, more)

    def _further(self, operand: View, strides: Mapping[str, int], first: int, k: str) -> str:
        """The address `first` steps and `k` blocks of the depth further on."""
        by = self._step(strides)
        start = at(self.p, operand.base, first * by, operand.dtype)
        return step(self.p, start, k, DEPTH * by, operand.dtype)

    def _step(self, strides: Mapping[str, int]) -> int:
        """Elements between what one instruction takes of the depth and the next."""
        return self.mma.depth // self.mma.group * strides[self.axes[-1][0]]

    def _blocks(self, left: str, right: str, target: View, steps: int, is_first: bool) -> None:
        """Blocks of sums with so many steps of the depth."""
        p, mma = self.p, self.mma
        below, beside = len(self.offsets) // mma.rows, self.lanes // mma.lanes
        across = min(BLOCK, below), min(BLOCK, beside)
        rows, lanes = across[0] * mma.rows, across[1] * mma.lanes
        row = target.strides[0]

        def block(i: str, j: str) -> None:
            a = step(p, left, i, rows * self.offsets[1], self.a.dtype)
            b = step(p, right, j, lanes * self.lane_stride, self.b.dtype)
            out = step(p, step(p, target.base, i, rows * row, F32), j, lanes, F32)
            self._block(a, b, out, row, across, steps, is_first)

        loop(p, below // across[0], lambda i: loop(p, beside // across[1], lambda j: block(i, j)))

    def _block(
        self,
        left: str,
        right: str,
        out: str,
        row: int,
        across: tuple[int, int],
        steps: int,
        is_first: bool,
    ) -> None:
        """A block of tiles of sums."""
        p, mma = self.p, self.mma
        below, beside = across
        sums = [[i * beside + j for j in range(beside)] for i in range(below)]
        places = {
            sums[i][j]: (at(p, out, i * mma.rows * row + j * mma.lanes, F32), row * F32.bytes)
            for i in range(below)
            for j in range(beside)
        }
        for number, place in places.items():
            if is_first:
                self._do("llvm.x86.tilezero", number)
            else:
                self._do("llvm.x86.tileloadd64", number, memory=place)
        self._over(0, left, right, sums, steps)
        for number, place in places.items():
            self._do("llvm.x86.tilestored64", number, memory=place)

    def _over(self, depth: int, left: str, right: str, sums: list[list[int]], steps: int) -> None:
        """Add the products over the axes from `depth` on, `steps` of the last one."""
        p = self.p
        name, extent = self.axes[depth]
        is_last = depth == len(self.axes) - 1

        def add(k: str) -> None:
            if is_last:
                a = step(p, left, k, self._step(self.a_stride), self.a.dtype)
                b = step(p, right, k, self._step(self.b_stride), self.b.dtype)
                self._multiply(a, b, sums)
            else:
                a = step(p, left, k, self.a_stride[name], self.a.dtype)
                b = step(p, right, k, self.b_stride[name], self.b.dtype)
                self._over(depth + 1, a, b, sums, steps)

        loop(p, steps if is_last else extent, add)

    def _multiply(self, left: str, right: str, sums: list[list[int]]) -> None:
        """Add one tile of each operand's rows and lanes."""
        p, mma, size = self.p, self.mma, self.a.dtype.bytes
        a_row, b_row = self.offsets[1], self.b_stride[self.axes[-1][0]]
        first = len(sums) * len(sums[0])  # registers behind those of sums
        beside = [first + j for j in range(len(sums[0]))]
        for j, number in enumerate(beside):
            place = at(p, right, j * mma.lanes * self.lane_stride, self.b.dtype)
            self._do("llvm.x86.tileloadd64", number, memory=(place, b_row * size))
        for i, line in enumerate(sums):
            number = beside[-1] + 1 + i
            place = at(p, left, i * mma.rows * a_row, self.a.dtype)
            self._do("llvm.x86.tileloadd64", number, memory=(place, a_row * size))
            for total, other in zip(line, beside, strict=True):
                self._do(mma.intrinsic, total, number, other)

    def _do(self, name: str, *registers: int, memory: tuple[str, int] | None = None) -> None:
        """An instruction on registers, and on rows of memory so many bytes apart."""
        p = self.p
        args = [p.constant(f"{r} : i8") for r in registers]
        types = ["i8"] * len(args)
        if memory is not None:
            args += [memory[0], p.constant(f"{memory[1]} : i64")]
            types += ["!llvm.ptr", "i64"]
        p.put(f'llvm.call_intrinsic "{name}"({", ".join(args)}) : ({", ".join(types)}) -> ()')
