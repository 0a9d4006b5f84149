"""The micro-kernel of a dot with AMX: accumulator tiles in registers of 16 rows of 64 bytes.

A block of two by two accumulator tiles is computed at a time, so that each loaded operand tile is
multiplied twice. Registers are named explicitly, as nothing else in a kernel uses them. If a tile
has fewer rows than a register, the accumulators and the left operand are configured with that many
rows; a kernel with tiles of several heights reconfigures before each matmul. Accumulators are
stored to memory, row by row. No register is free to load ahead while others are multiplied, so
panels in the L2 cache are prefetched instead.
Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from math import gcd

from stack.ir.contraction import tile_extents
from stack.ir.node import Node, walk
from stack.ir.types import F32
from stack.target import Mma

from .access import Accesses
from .elementwise import Unprintable
from .sums import FIRST, Operands, fetches_of, prefetch, prefetch_part
from .views import View, at, is_stored, loop, mma_of, step

REGISTERS = 8
ROWS, ROW_BYTES = 16, 64  # per register
LAYOUT = 64  # bytes of the tile configuration: a version, then widths and rows of registers
WIDTHS, HEIGHTS = 16, 48  # offsets of widths and rows in it
RIGHT = 6  # first register of the right operand, after accumulators and the left operand
BLOCK = 2  # accumulator tiles per block in each direction, at most
RELEASE = 'llvm.call_intrinsic "llvm.x86.tilerelease"() : () -> ()'


def layout(rows: int = ROWS) -> list[int]:
    """Returns the bytes of the AMX tile configuration for accumulators of `rows` rows.

    Left operands have as many rows; right operands fill their registers.
    """
    found = [1, *[0] * (LAYOUT - 1)]
    found[WIDTHS : WIDTHS + 2 * REGISTERS : 2] = [ROW_BYTES] * REGISTERS
    found[HEIGHTS : HEIGHTS + REGISTERS] = [rows] * REGISTERS
    if rows < ROWS:
        found[HEIGHTS + RIGHT : HEIGHTS + REGISTERS] = [ROWS] * (REGISTERS - RIGHT)
    return found


def configure(p: Accesses, rows: int) -> None:
    """Configure the registers for matmuls of `rows` rows; they are released at the end.

    If all matmuls of a kernel have equally many rows, this happens once, at its start; otherwise
    before each matmul.
    """
    use = f'llvm.call_intrinsic "llvm.x86.ldtilecfg"(%tiles{rows}) : (!llvm.ptr) -> ()'
    if not p.tile_rows:
        p.tile_rows = _heights(p)
        for height in p.tile_rows:
            at, which = f"%tiles{height}", f"%layout{height}"
            p.reserve(at, LAYOUT, "i8")
            p.top += [
                f"  {which} = arith.constant dense<{layout(height)}> : vector<{LAYOUT}xi8>",
                f"  llvm.store {which}, {at} : vector<{LAYOUT}xi8>, !llvm.ptr",
            ]
        if len(p.tile_rows) == 1:
            p.top.append(f"  {use}")
    if len(p.tile_rows) > 1:
        p.put(use)


def _heights(p: Accesses) -> list[int]:
    """Returns the distinct numbers of accumulator rows in the AMX matmuls of a kernel, sorted."""
    tiles = (tile_extents(n) for _, n in walk(p.block) if is_stored(n, p.cpu))
    return sorted({min(ROWS, t.rows) for t in tiles if t is not None})


def store_sums(p: Accesses, node: Node, target: View) -> None:
    """Prints a dot that accumulates in AMX tile registers, and stores the sums to memory."""
    mma = mma_of(node, p.cpu)
    assert mma is not None
    _Tiles(p, node, mma).store(target)


class _Tiles(Operands):
    """Accumulates tiles with AMX, a block at a time, in a loop over each contracted axis."""

    def __init__(self, p: Accesses, node: Node, mma: Mma) -> None:
        super().__init__(p, node)
        self.mma = mma
        self.axes.pop()  # the axis of neighbours that one instruction multiplies
        self.fetches = fetches_of(p, node) if len(self.axes) == 1 else []
        self.height = min(mma.rows, len(self.offsets))
        configure(p, self.height)

    def store(self, target: View) -> None:
        """Compute and store all tiles, block by block."""
        p, mma = self.p, self.mma
        row, column = target.strides
        if column != 1:
            raise Unprintable("a matmul result whose lanes are strided in memory")
        below, beside = len(self.offsets) // self.height, self.lanes // mma.lanes
        across = gcd(BLOCK, below), gcd(BLOCK, beside)
        rows, lanes = across[0] * self.height, across[1] * mma.lanes
        counts = below // across[0], beside // across[1]
        many, self.turns = p.constant(f"{counts[1]} : i64"), counts[0] * counts[1]
        with loop(p, counts[0]) as i, loop(p, counts[1]) as j:
            left = step(p, self.a.base, i, rows * self.offsets[1], self.a.dtype)
            right = step(p, self.b.base, j, lanes * self.lane_stride, self.b.dtype)
            out = step(p, step(p, target.base, i, rows * row, F32), j, lanes, F32)
            turn = p.do(f"arith.addi {p.do(f'arith.muli {i}, {many} : i64')}, {j} : i64")
            self._block(left, right, out, row, across, turn)

    def _block(
        self, left: str, right: str, out: str, row: int, across: tuple[int, int], turn: str
    ) -> None:
        """Compute and store one block of accumulator tiles.

        `across`: its number of tiles below and beside each other. `turn`: the number of the block,
        which determines the cache lines that it prefetches for later blocks.
        """
        p, mma = self.p, self.mma
        below, beside = across
        sums = [[i * beside + j for j in range(beside)] for i in range(below)]
        for number in range(below * beside):
            self._do("llvm.x86.tilezero", number)
        self._over(0, left, right, sums, turn)
        for i, line in enumerate(sums):
            for j, number in enumerate(line):
                place = at(p, out, i * self.height * row + j * mma.lanes, F32)
                self._do("llvm.x86.tilestored64", number, memory=(place, row * F32.bytes))

    def _over(self, depth: int, left: str, right: str, sums: list[list[int]], turn: str) -> None:
        """Prints nested loops over the contracted axes from `depth` on, which add up products.

        `left` and `right`: the operands' addresses. `sums`: the block's tile registers.
        """
        p, mma = self.p, self.mma
        name, extent = self.axes[depth]
        is_last = depth == len(self.axes) - 1
        by = mma.depth // mma.group if is_last else 1
        with loop(p, extent // by) as k:
            a = step(p, left, k, by * self.a_stride[name], self.a.dtype)
            b = step(p, right, k, by * self.b_stride[name], self.b.dtype)
            if not is_last:
                self._over(depth + 1, a, b, sums, turn)
                return
            if self.fetches:
                count = p.constant(f"{extent // by} : i64")
                number = p.do(f"arith.addi {p.do(f'arith.muli {turn}, {count} : i64')}, {k} : i64")
                for block in self.fetches:
                    prefetch_part(p, block, number, self.turns * (extent // by))
            if self.is_far():
                self._ask(b, len(sums[0]))
            self._multiply(a, b, sums)

    def _ask(self, right: str, beside: int) -> None:
        """Prints prefetches to L1 of the right operand's tiles for the next iteration of the loop.

        That loop is over the contracted axis. `beside`: number of tiles in a row of the block.
        """
        p, mma, row = self.p, self.mma, self.b_stride[self.axes[-1][0]]
        rows = mma.depth // mma.group
        for i in range(rows, 2 * rows):
            for j in range(beside):
                place = i * row + j * mma.lanes * self.lane_stride
                prefetch(p, at(p, right, place, self.b.dtype), FIRST)

    def _multiply(self, left: str, right: str, sums: list[list[int]]) -> None:
        """Multiply one tile of each operand per row and column of the block."""
        p, mma, size = self.p, self.mma, self.a.dtype.bytes
        a_row, b_row = self.offsets[1], self.b_stride[self.axes[-1][0]]
        beside = [RIGHT + j for j in range(len(sums[0]))]
        behind = len(sums) * len(sums[0])  # the first register after the accumulators
        for j, number in enumerate(beside):
            place = at(p, right, j * mma.lanes * self.lane_stride, self.b.dtype)
            self._do("llvm.x86.tileloadd64", number, memory=(place, b_row * size))
        for i, line in enumerate(sums):
            number = behind + i
            place = at(p, left, i * self.height * a_row, self.a.dtype)
            self._do("llvm.x86.tileloadd64", number, memory=(place, a_row * size))
            for total, other in zip(line, beside, strict=True):
                self._do(mma.intrinsic, total, number, other)

    def _do(self, name: str, *registers: int, memory: tuple[str, int] | None = None) -> None:
        """Print an AMX instruction on tile registers and on memory: address, row pitch in bytes."""
        p = self.p
        args = [p.constant(f"{r} : i8") for r in registers]
        types = ["i8"] * len(args)
        if memory is not None:
            args += [memory[0], p.constant(f"{memory[1]} : i64")]
            types += ["!llvm.ptr", "i64"]
        p.put(f'llvm.call_intrinsic "{name}"({", ".join(args)}) : ({", ".join(types)}) -> ()')
