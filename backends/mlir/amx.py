"""The micro-kernel of a dot in AMX: tiles of sums in registers of 16 rows of 64 bytes.

Two by two tiles of sums are under way, so that each tile of an operand that is read is multiplied
twice. Registers are named, not allocated: nothing else in a kernel uses them. All are whole; what
tiles do not divide, the passes give to another instruction. Sums go to memory, row by row.
Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stack.ir.node import Node
from stack.ir.types import F32
from stack.target import Unit

from .elementwise import Unprintable
from .micro_kernel import Operands
from .units import unit_of
from .views import View, at, loop, step

if TYPE_CHECKING:
    from .printer import Printer

REGISTERS = 8
ROWS, ROW_BYTES = 16, 64  # of a register
LAYOUT = 64  # bytes that say what shape registers have: a version, then widths and rows
WIDTHS, HEIGHTS = 16, 48  # where in it
BLOCK = 2  # tiles of sums below and beside each other
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
    unit = unit_of(node, p.cpu)
    assert unit is not None
    _Tiles(p, node, unit).store(target)


class _Tiles(Operands):
    """Sums in tiles of AMX: a few at a time, over a loop for each contracted axis."""

    def __init__(self, p: Printer, node: Node, unit: Unit) -> None:
        super().__init__(p, node)
        self.unit = unit
        self.axes.pop()  # of neighbours
        configure(p)

    def store(self, target: View) -> None:
        """All sums, block by block."""
        unit, p = self.unit, self.p
        below, beside = len(self.offsets) // unit.rows, self.lanes // unit.lanes
        row, column = target.strides
        if column != 1:
            raise Unprintable("sums whose lanes are apart in memory")
        across = min(BLOCK, below), min(BLOCK, beside)
        steps = across[0] * unit.rows, across[1] * unit.lanes
        a_row = self.offsets[1]

        def blocks(i: str, j: str) -> None:
            left = step(p, self.a.base, i, steps[0] * a_row, self.a.dtype)
            right = step(p, self.b.base, j, steps[1] * self.lane_stride, self.b.dtype)
            out = step(p, step(p, target.base, i, steps[0] * row, F32), j, steps[1], F32)
            self._block(left, right, out, row, *across)

        loop(p, below // across[0], lambda i: loop(p, beside // across[1], lambda j: blocks(i, j)))

    def _block(self, left: str, right: str, out: str, row: int, below: int, beside: int) -> None:
        """A block of tiles of sums."""
        p, unit = self.p, self.unit
        sums = [[i * beside + j for j in range(beside)] for i in range(below)]
        first = below * beside
        for number in range(first):
            self._do("llvm.x86.tilezero", number)
        self._over(0, left, right, sums, first)
        for i, numbers in enumerate(sums):
            for j, number in enumerate(numbers):
                place = at(p, out, i * unit.rows * row + j * unit.lanes, F32)
                self._do("llvm.x86.tilestored64", number, memory=(place, row * F32.bytes))

    def _over(self, depth: int, left: str, right: str, sums: list[list[int]], first: int) -> None:
        """Add the products over the axes from `depth` on; `first`: the first free register."""
        p, unit = self.p, self.unit
        name, extent = self.axes[depth]
        is_last = depth == len(self.axes) - 1
        by = unit.depth // unit.group if is_last else 1

        def add(k: str) -> None:
            a = step(p, left, k, by * self.a_stride[name], self.a.dtype)
            b = step(p, right, k, by * self.b_stride[name], self.b.dtype)
            if not is_last:
                self._over(depth + 1, a, b, sums, first)
                return
            size, a_row = self.a.dtype.bytes, self.offsets[1]
            beside = [first + j for j in range(len(sums[0]))]
            below = [beside[-1] + 1 + i for i in range(len(sums))]
            for j, number in enumerate(beside):
                place = at(p, b, j * unit.lanes * self.lane_stride, self.b.dtype)
                self._do("llvm.x86.tileloadd64", number, memory=(place, self.b_stride[name] * size))
            for i, (number, line) in enumerate(zip(below, sums, strict=True)):
                place = at(p, a, i * unit.rows * a_row, self.a.dtype)
                self._do("llvm.x86.tileloadd64", number, memory=(place, a_row * size))
                for total, other in zip(line, beside, strict=True):
                    self._do(unit.intrinsic, total, number, other)

        loop(p, extent // by, add)

    def _do(self, name: str, *registers: int, memory: tuple[str, int] | None = None) -> None:
        """An instruction on registers, and on rows of memory so many bytes apart."""
        p = self.p
        args = [p.constant(f"{r} : i8") for r in registers]
        types = ["i8"] * len(args)
        if memory is not None:
            args += [memory[0], p.constant(f"{memory[1]} : i64")]
            types += ["!llvm.ptr", "i64"]
        p.put(f'llvm.call_intrinsic "{name}"({", ".join(args)}) : ({", ".join(types)}) -> ()')
