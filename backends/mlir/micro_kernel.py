"""The micro-kernel of a dot as MLIR text: the instructions that multiply, and their operands.

It uses multiply-adds, or an instruction for 8- and 16-bit numbers; `amx` has a separate one.

Overlapping windows share elements. Those that several windows cover are loaded and widened once,
and multiplied with each tap that uses them: windows of seven taps share most of their elements with
their neighbours. Taps of a row are unrolled, as many at a time as fit in registers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from stack.ir.contraction import is_along_depth, tile_extents
from stack.ir.node import Node
from stack.ir.types import I32
from stack.target import Mma

from .access import Accesses
from .copies import zipped
from .elementwise import Unprintable, as_float, is_short, shaped
from .sums import BLOCKS, Sums
from .views import at, mma_of, step


def multiply(p: Accesses, node: Node) -> list[str]:
    """Prints a dot by the micro-kernel for its operands; returns its rows, a vector each."""
    mma, found = mma_of(node, p.cpu), tile_extents(node)
    if is_along_depth(node) and (found is None or found.group == 1):
        return _DepthSums(p, node, mma).rows()
    return (TapSums(p, node) if mma is None else _WordSums(p, node, mma)).rows()


class _MmaSums(Sums):
    """Sums of a dot by an instruction that multiplies groups of neighbours and adds them up.

    Neighbours are along the contracted axis. Without `mma` it uses multiply-adds.
    """

    def __init__(self, p: Accesses, node: Node, mma: Mma | None) -> None:
        self.mma = mma
        super().__init__(p, node)
        self.raise_by = mma.offset - self.a.raised if mma else 0
        if self.raise_by:  # one more row: products with only the offset
            self.offsets = [*self.offsets, 0]

    def widen_steps(self, by: int) -> None:
        """Makes each step of the loop over the last contracted axis take `by` of its elements.

        Raises Unprintable if the extent is not a multiple of `by`.
        """
        name, extent = self.axes[-1]
        if extent % by:
            raise Unprintable(f"a contracted axis of {extent}, not a multiple of {by}")
        self.axes[-1] = name, extent // by
        for strides in (self.a_stride, self.b_stride):
            strides[name] *= by

    def added(self, total: str, left: str, right: str) -> str:
        """Returns `total` plus the products of two operand vectors, by `mma` or a multiply-add."""
        p, mma = self.p, self.mma
        if mma is None:
            return self.multiply_add(left, right, total)
        dtype, lanes = self.b.dtype, mma.group * mma.lanes
        t = shaped(dtype, lanes)
        if is_short(dtype):
            (left, t), (right, _) = (as_float(p, x, dtype, lanes) for x in (left, right))
        return p.do(
            f'llvm.call_intrinsic "{mma.intrinsic}"({total}, {left}, {right})'
            f" : ({self.type}, {t}, {t}) -> {self.type}"
        )

    def without_offset(self, rows: list[list[str]]) -> list[list[str]]:
        """Returns the sums of all rows, minus those of the last row.

        The instruction needs a left operand that is raised by an offset. The last row has the
        contribution of this offset, and is dropped. Without an offset, the rows are unchanged.
        """
        if not self.raise_by:
            return rows
        *rows, more = rows
        t = self.type
        return [[self.p.do(f"arith.subi {x}, {y} : {t}") for x, y in zip(r, more)] for r in rows]

    def as_words(self, vector: str) -> tuple[str, str]:
        """Bitcast a vector of neighbours to words; also returns its type."""
        assert self.mma is not None
        words = shaped(I32, self.mma.lanes)
        t = shaped(self.b.dtype, self.mma.group * self.mma.lanes)
        return self.p.do(f"vector.bitcast {vector} : {t} to {words}"), words

    def offset_word(self) -> str:
        """Returns a 32-bit word with the instruction's operand offset in each of its elements."""
        assert self.mma is not None
        each = bytes([self.mma.offset] * self.mma.group)
        return self.p.constant(f"{int.from_bytes(each, 'little', signed=True)} : i32")

    def from_words(self, word: str) -> str:
        """Repeats a 32-bit word over a vector, and bitcasts it to elements of the right operand."""
        assert self.mma is not None
        words = shaped(I32, self.mma.lanes)
        spread = self.p.do(f"vector.broadcast {word} : i32 to {words}")
        t = shaped(self.b.dtype, self.mma.group * self.mma.lanes)
        return self.p.do(f"vector.bitcast {spread} : {words} to {t}")


class _WordSums(_MmaSums):
    """Sums of a dot with one lane per result column: repeats a left word over all lanes.

    A word is a group of neighbours along the contracted axis; the instruction multiplies it with
    the same group of each column.
    """

    def __init__(self, p: Accesses, node: Node, mma: Mma) -> None:
        super().__init__(p, node, mma)
        self.mma: Mma = mma
        self.b = replace(self.b, to=self.b.dtype)  # the instruction converts
        self.is_packed = self.lane_stride == mma.group
        if self.is_packed:
            name, _ = self.axes.pop()  # the axis of neighbours
        else:
            # the operand with lanes may have its contracted axes in another order
            self.axes.sort(key=lambda axis: self.a_stride[axis[0]] == 1)
            name, _ = self.axes[-1]
        if self.a_stride[name] != 1:
            raise Unprintable("a dot of words whose elements are strided in memory")
        if not self.is_packed:
            self.widen_steps(mma.group)
        self.join_axes()

    def _width(self, node: Node) -> int:
        assert self.mma is not None
        return self.mma.lanes

    def rows(self) -> list[str]:
        made = _parts(super().rows(), self.lanes // self.width)
        return [self._joined(row) for row in self.without_offset(made)]

    def _joined(self, parts: list[str]) -> str:
        """Concatenates vectors."""
        size = self.width
        while len(parts) > 1:
            t = shaped(self.dtype, size)
            size *= 2
            parts = [
                self.p.do(f"vector.shuffle {x}, {y} {list(range(size))} : {t}, {t}")
                for x, y in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    def products(self, lefts: Sequence[str], right: str, sums: Sequence[str]) -> list[str]:
        lines = [self._line(right, place) for place in range(0, self.lanes, self.width)]
        words = [self._word(left) for left in lefts]
        if self.raise_by:
            words[-1] = self.offset_word()
        made: list[str] = []
        for word, totals in zip(words, _parts(sums, len(lines)), strict=True):
            many = self.from_words(word)
            made += [self.added(x, many, line) for x, line in zip(totals, lines, strict=True)]
        return made

    def _line(self, right: str, lane: int) -> str:
        """Loads the right operand's groups of neighbours for a vector of columns from `lane` on."""
        p, group, width = self.p, self.mma.group, self.width
        right = at(p, right, lane * self.lane_stride, self.b.dtype)
        if self.is_packed:
            return self.b.read(p, right, group * width)
        apart = self.b_stride[self.axes[-1][0]] // group
        rows = [self.b.read(p, at(p, right, i * apart, self.b.dtype), width) for i in range(group)]
        return zipped(p, rows, self.b.dtype, width)

    def _word(self, left: str) -> str:
        """Loads the neighbours of a row, converted for the instruction."""
        p, size = self.p, self.a.dtype.bytes
        word = p.do(f"llvm.load {left} {{alignment = {size} : i64}} : !llvm.ptr -> i32")
        # an offset of half the range of 8 bits flips the sign bit
        return p.do(f"arith.xori {word}, {self.offset_word()} : i32") if self.mma.offset else word


class _DepthSums(_MmaSums):
    """Sums of a dot along the contracted axis, which is last in both operands.

    Each result element has a vector of partial sums, which are added at the end. A few columns are
    computed at a time, so that their sums stay in registers.
    """

    def __init__(self, p: Accesses, node: Node, mma: Mma | None) -> None:
        super().__init__(p, node, mma)
        self.run = self.width * (mma.group if mma else 1)
        self.widen_steps(self.run)
        self.few = min(self.lanes, p.cpu.sums_beside(len(self.offsets)))

    def _width(self, node: Node) -> int:
        return self.mma.lanes if self.mma else self.p.cpu.vector_bytes // node.dtype.bytes

    def rows(self) -> list[str]:
        p = self.p
        lefts = [at(p, self.a.base, offset, self.a.dtype) for offset in self.offsets]
        made: list[list[str]] = []  # per lane, the sums of all rows
        for lane in range(0, self.lanes, self.few):
            right = at(p, self.b.base, lane * self.lane_stride, self.b.dtype)
            sums = [self.zero] * (len(lefts) * self.few)
            self.sum(0, lefts, right, sums)
            made += map(list, zip(*self.without_offset(_parts(sums, self.few))))
        return [self._row(list(row)) for row in zip(*made)]

    def products(self, lefts: Sequence[str], right: str, sums: Sequence[str]) -> list[str]:
        p = self.p
        places = [at(p, right, i * self.lane_stride, self.b.dtype) for i in range(self.few)]
        lines = [self.b.read(p, place, self.run) for place in places]
        rows = [self._raised(self.a.read(p, left, self.run)) for left in lefts]
        if self.raise_by:
            rows[-1] = self.from_words(self.offset_word())
        made: list[str] = []
        for row, totals in zip(rows, _parts(sums, self.few), strict=True):
            made += [self.added(x, row, line) for x, line in zip(totals, lines, strict=True)]
        return made

    def _raised(self, row: str) -> str:
        """Adds the instruction's offset to a vector of the left operand, by flipping sign bits."""
        if not self.mma or not self.mma.offset:
            return row
        words, t = self.as_words(row)
        offsets, _ = self.as_words(self.from_words(self.offset_word()))
        raised = self.p.do(f"arith.xori {words}, {offsets} : {t}")
        return self.p.do(f"vector.bitcast {raised} : {t} to {shaped(self.a.dtype, self.run)}")

    def _row(self, parts: list[str]) -> str:
        """Reduces each vector to its sum, and collects the sums in one vector."""
        p, scalar, t = self.p, shaped(self.dtype, 0), shaped(self.dtype, self.lanes)
        flags = " fastmath<reassoc>" if self.dtype.is_float else ""
        made = p.number(0, self.dtype, self.lanes)
        for lane, part in enumerate(parts):
            total = p.do(f"vector.reduction <add>, {part}{flags} : {self.type} into {scalar}")
            made = p.do(
                f"llvm.insertelement {total}, {made}[{p.constant(f'{lane} : i64')} : i64] : {t}"
            )
        return made


def _parts(values: Sequence[str], count: int) -> list[list[str]]:
    """Splits values into parts of `count`."""
    return [list(values[i : i + count]) for i in range(0, len(values), count)]


Uses = dict[int, list[tuple[int, int]]]  # element offset to the (window, tap) pairs that use it


class TapSums(Sums):
    """Sums whose lanes read overlapping windows: elements that these share are loaded once."""

    def __init__(self, p: Accesses, node: Node) -> None:
        super().__init__(p, node)
        self.run = 0  # taps per block, if windows overlap
        self.join_axes()
        shared = [axis for axis in self.axes if self._shares(*axis)] if self.is_by_lane else []
        if shared:
            last = min(shared, key=lambda axis: len(self._uses(*axis)) / axis[1])
            self.axes.remove(last)
            self.axes.append(last)
            self.run = p.cpu.taps(last[1])

    def _shares(self, name: str, extent: int) -> bool:
        if extent >= 2 * BLOCKS[-1]:
            return False  # such long sums are split into blocks
        return len(self._uses(name, extent)) < extent * len(self.offsets)

    def _uses(self, name: str, taps: int) -> Uses:
        found: Uses = defaultdict(list)
        for row, offset in enumerate(self.offsets):
            for tap in range(taps):
                found[offset + tap * self.a_stride[name]].append((row, tap))
        return found

    def sum(self, depth: int, lefts: list[str], right: str, sums: list[str]) -> None:
        if not self.run or depth < len(self.axes) - 1:
            super().sum(depth, lefts, right, sums)
            return
        p, (name, extent) = self.p, self.axes[-1]
        a, b = self.a_stride[name], self.b_stride[name]
        whole = extent - extent % self.run
        if whole > self.run:
            first, last, by = (p.constant(f"{n} : i64") for n in (0, whole, self.run))
            with self.loop(first, last, by, sums) as k:
                left = step(p, lefts[0], k, a, self.a.dtype)
                self._add(name, self.run, left, step(p, right, k, b, self.b.dtype), sums)
        else:
            self._add(name, whole, lefts[0], right, sums)
        left = at(p, lefts[0], whole * a, self.a.dtype)
        self._add(name, extent - whole, left, at(p, right, whole * b, self.b.dtype), sums)

    def _add(self, name: str, count: int, left: str, right: str, sums: list[str]) -> None:
        """Adds the products with the first `count` window positions (taps) of an axis to the sums.

        The sums are those of all rows. Loads each vector of the left operand once, for all rows and
        taps that use it.
        """
        p, by = self.p, self.b_stride[name]
        lines = [at(p, right, tap * by, self.b.dtype) for tap in range(count)]
        taps = [self.b.read(p, line, self.lanes) for line in lines]
        for offset, uses in sorted(self._uses(name, count).items()):
            place = self.a.read(p, at(p, left, offset, self.a.dtype), self.lanes)
            for row, tap in uses:
                sums[row] = self.multiply_add(place, taps[tap], sums[row])
