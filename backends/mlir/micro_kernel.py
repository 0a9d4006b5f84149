"""The micro-kernel of a dot as MLIR text: sums in vector registers, in loops over contracted axes.

It is made of multiply-adds, or of an instruction for short numbers; `amx` has another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stack.ir.axes import parse_rule
from stack.ir.contraction import is_along_depth, tile_extents
from stack.ir.node import Node
from stack.ir.types import I32
from stack.target import Mma

from .copies import zipped
from .elementwise import Unprintable, shaped
from .fetch import FIRST, LINE, fetches_of, prefetch
from .mma import mma_of
from .views import at, in_memory, step, view
from .writer import multiply_add

if TYPE_CHECKING:
    from .printer import Printer

BLOCKS = 8192, 256  # products that are added up one after another, and blocks of them
STEPS = 16  # between which lines are fetched, where those of a row do not tell
NEAR = 2048  # bytes of a panel that are asked for before they are multiplied
FIRST_LEVEL = 32 << 10  # bytes of a cache that every CPU has: what is larger comes from the second

Step = Callable[[str, list[str]], list[str]]  # a place of an axis, and sums before and after it
Walk = Callable[[str, str, list[str]], list[str]]  # from one place to another


def multiply(p: Printer, node: Node) -> list[str]:
    """The rows of a dot."""
    mma, found = mma_of(node, p.cpu), tile_extents(node)
    if is_along_depth(node) and (found is None or found.group == 1):
        return _DepthSums(p, node, mma).rows()
    return (_Sums(p, node) if mma is None else _WordSums(p, node, mma)).rows()


class Operands:
    """Both sides of a dot in memory.

    Attributes:
        a, b: the operand without lanes, and the one with them.
        axes: the contracted axes with their extents, in the order of `b`.
        offsets: elements of `a` from its start to each row.
    """

    def __init__(self, p: Printer, node: Node) -> None:
        self.p = p
        rule = parse_rule(node.attrs["rule"])
        output = [a.names[0] for a in rule.outputs[0]]
        names = [[a.names[0] for a in o] for o in rule.inputs]
        shared = set(names[0]).intersection(names[1]).difference(output)
        right = 1 if output[-1] in names[1] else 0
        if not all(in_memory(p, a) for a in node.args):
            raise Unprintable("an operand of a dot that is not in memory")
        self.a = view(p, node.args[1 - right])
        self.b = view(p, node.args[right])
        self.a_stride = dict(zip(names[1 - right], self.a.strides, strict=True))
        self.b_stride = dict(zip(names[right], self.b.strides, strict=True))
        extents = dict(zip(names[1 - right], self.a.shape)) | dict(zip(names[right], self.b.shape))
        self.lanes = extents[output[-1]]
        self.lane_stride = self.b_stride[output[-1]]
        self.is_by_lane = output[-1] in self.a_stride
        if self.is_by_lane and self.a_stride[output[-1]] != 1:
            raise Unprintable("a dot whose lanes are apart in memory")
        self.axes = [(n, extents[n]) for n in names[right] if n in shared and extents[n] > 1]
        self.offsets, self.row_stride = [0], 0
        if len(output) == 2:
            self.row_stride = self.a_stride[output[0]]
            self.offsets = [self.row_stride * r for r in range(extents[output[0]])]


class _Sums(Operands):
    """Sums in registers, one vector for each row, over a loop for each contracted axis.

    Long sums are made of blocks that start from zero: rounding grows with their number.
    """

    def __init__(self, p: Printer, node: Node) -> None:
        super().__init__(p, node)
        self.dtype = node.dtype
        self.ahead = self.row_stride * node.attrs.get("ahead", 0)
        self.fetches = fetches_of(p, node) if len(self.axes) == 1 else []
        self.width = self._width(node)
        self.type = shaped(self.dtype, self.width)
        self.zero = p.number(0, self.dtype, self.width)

    def _width(self, node: Node) -> int:
        """Lanes of a vector of sums."""
        if self.lane_stride != 1:
            raise Unprintable("a dot whose lanes are apart in memory")
        return self.lanes

    def rows(self) -> list[str]:
        """The sums, a vector for each row."""
        lefts = [at(self.p, self.a.base, offset, self.a.dtype) for offset in self.offsets]
        zeros = [self.zero] * (len(lefts) * (self.lanes // self.width))
        return self.sum(0, lefts, self.b.base, zeros)

    def products(self, lefts: Sequence[str], right: str, sums: Sequence[str]) -> list[str]:
        """Sums with the products at one place of all contracted axes."""
        line = self.b.read(self.p, right, self.lanes)
        return [self._multiply(left, line, total) for left, total in zip(lefts, sums, strict=True)]

    def sum(self, depth: int, lefts: list[str], right: str, sums: list[str]) -> list[str]:
        """Sums over the axes from `depth` on, at the given addresses."""
        p = self.p
        if depth == len(self.axes):
            return self.products(lefts, right, sums)
        name, extent = self.axes[depth]
        near = self._near() if depth == len(self.axes) - 1 else range(0)

        def add(k: str, totals: list[str]) -> list[str]:
            inner = [step(p, left, k, self.a_stride[name], self.a.dtype) for left in lefts]
            below = step(p, right, k, self.b_stride[name], self.b.dtype)
            for place in near:
                prefetch(p, at(p, below, place, self.b.dtype), FIRST)
            return self.sum(depth + 1, inner, below, totals)

        zero, end = (p.constant(f"{n} : i64") for n in (0, extent))
        inner = math.prod(size for _, size in self.axes[depth + 1 :])
        sizes = [-(-b // inner) for b in BLOCKS if inner < 2 * b <= extent * inner]
        walk = partial(self._walk, depth, lefts, add=add)
        return self._blocked(zero, end, sizes if self.dtype.is_float else [], sums, walk)

    def _blocked(
        self, first: str, last: str, sizes: Sequence[int], sums: list[str], walk: Walk
    ) -> list[str]:
        """Sums from one place to another: of blocks of such sizes, which are inside each other."""
        if not sizes:
            return walk(first, last, sums)
        p, (size, *smaller) = self.p, sizes
        length = p.constant(f"{size} : i64")

        def add_block(start: str, totals: list[str]) -> list[str]:
            past = p.do(f"arith.addi {start}, {length} : i64")
            end = p.do(f"arith.minsi {past}, {last} : i64")
            block = self._blocked(start, end, smaller, [self.zero] * len(sums), walk)
            pairs = zip(totals, block, strict=True)
            return [p.do(f"arith.addf {a}, {b} : {self.type}") for a, b in pairs]

        return self.loop(first, last, length, sums, add_block)

    def _near(self) -> range:
        """Where lines of a packed panel begin that a step asks the second-level cache for."""
        width = self.lanes * self.lane_stride
        size = width * self.b.dtype.bytes
        panel = size * math.prod(extent for _, extent in self.axes)
        if self.b_stride[self.axes[-1][0]] != width or panel <= FIRST_LEVEL:
            return range(0)
        first = -(-NEAR // size) * width
        return range(first, first + width, LINE // self.b.dtype.bytes)

    def _walk(
        self,
        depth: int,
        lefts: Sequence[str],
        first: str,
        last: str,
        sums: list[str],
        add: Step,
    ) -> list[str]:
        """Steps along an axis: along the last one line by line, where rows are fetched ahead."""
        p, (name, extent) = self.p, self.axes[depth]
        one = p.constant("1 : i64")
        apart = self.a_stride[name] * self.a.dtype.bytes
        is_line = apart in (1, 2, 4, 8)
        rows = lefts if self.ahead and is_line else []
        if depth < len(self.axes) - 1 or not (rows or self.fetches):
            return self.loop(first, last, one, sums, add)
        size = LINE // apart if is_line else STEPS
        by = p.constant(f"{size} : i64")

        def add_line(k: str, totals: list[str]) -> list[str]:
            for left in rows:
                row = at(p, left, self.ahead, self.a.dtype)
                prefetch(p, step(p, row, k, self.a_stride[name], self.a.dtype), FIRST)
            for fetch in self.fetches:
                fetch.step(p.do(f"arith.divui {k}, {by} : i64"), -(-extent // size))
            past = p.do(f"arith.addi {k}, {by} : i64")
            end = p.do(f"arith.minsi {past}, {last} : i64") if extent % size else past
            return self.loop(k, end, one, totals, add)

        return self.loop(first, last, by, sums, add_line)

    def loop(
        self,
        first: str,
        last: str,
        by: str,
        sums: list[str],
        body: Step,
    ) -> list[str]:
        """A loop that carries the sums."""
        p = self.p
        p.count += 1
        k, result = f"%k_{p.count}", f"%sum{p.count}"
        carried = [f"%part{p.count}_{i}" for i in range(len(sums))]
        inits = ", ".join(f"{c} = {s}" for c, s in zip(carried, sums, strict=True))
        types = ", ".join([self.type] * len(sums))
        p.put(
            f"{result}:{len(sums)} = scf.for {k} = {first} to {last} step {by}"
            f" iter_args({inits}) -> ({types}) : i64 {{"
        )
        p.depth += 1
        made = body(k, carried)
        p.put(f"scf.yield {', '.join(made)} : {types}")
        p.depth -= 1
        p.put("}")
        return [f"{result}#{i}" for i in range(len(sums))]

    def _multiply(self, left: str, line: str, total: str) -> str:
        p = self.p
        if self.is_by_lane:
            row = self.a.read(p, left, self.lanes)
            return self.multiply_add(row, line, total)
        scalar = self.a.read(p, left, 0)
        many = p.do(f"vector.broadcast {scalar} : {shaped(self.a.to, 0)} to {self.type}")
        return self.multiply_add(many, line, total)

    def multiply_add(self, left: str, right: str, total: str) -> str:
        """left * right + total; where the CPU has multiply-adds, with one rounding."""
        if self.dtype.is_float:
            return self.p.do(multiply_add(left, right, total, self.type))
        product = self.p.do(f"arith.muli {left}, {right} : {self.type}")
        return self.p.do(f"arith.addi {product}, {total} : {self.type}")


class _MmaSums(_Sums):
    """The same with an instruction that multiplies and sums neighbours, or with multiply-adds."""

    def __init__(self, p: Printer, node: Node, mma: Mma | None) -> None:
        self.mma = mma
        super().__init__(p, node)
        self.raise_by = mma.offset - self.a.raised if mma else 0
        if self.raise_by:  # one row more: products with the offset alone
            self.offsets = [*self.offsets, 0]

    def widen_steps(self, by: int) -> None:
        """Take so many elements of the last contracted axis at a time."""
        name, extent = self.axes[-1]
        if extent % by:
            raise Unprintable(f"{extent} products of a dot in steps of {by}")
        self.axes[-1] = name, extent // by
        for strides in (self.a_stride, self.b_stride):
            strides[name] *= by

    def added(self, total: str, left: str, right: str) -> str:
        """Sums with the products of two vectors."""
        p, mma = self.p, self.mma
        if mma is None:
            return self.multiply_add(left, right, total)
        t = shaped(self.b.dtype, mma.group * mma.lanes)
        return p.do(
            f'llvm.call_intrinsic "{mma.intrinsic}"({total}, {left}, {right})'
            f" : ({self.type}, {t}, {t}) -> {self.type}"
        )

    def without_offset(self, rows: list[list[str]]) -> list[list[str]]:
        """Sums without what the offset adds, which the last row has."""
        if not self.raise_by:
            return rows
        *rows, more = rows
        t = self.type
        return [[self.p.do(f"arith.subi {x}, {y} : {t}") for x, y in zip(r, more)] for r in rows]

    def as_words(self, vector: str) -> tuple[str, str]:
        """A vector of neighbours as one of words, and its type."""
        assert self.mma is not None
        words = shaped(I32, self.mma.lanes)
        t = shaped(self.b.dtype, self.mma.group * self.mma.lanes)
        return self.p.do(f"vector.bitcast {vector} : {t} to {words}"), words

    def offset_word(self) -> str:
        """The offset for each neighbour of a word."""
        assert self.mma is not None
        each = bytes([self.mma.offset] * self.mma.group)
        return self.p.constant(f"{int.from_bytes(each, 'little', signed=True)} : i32")

    def from_words(self, word: str) -> str:
        """A vector of one word again and again, as its neighbours."""
        assert self.mma is not None
        words = shaped(I32, self.mma.lanes)
        spread = self.p.do(f"vector.broadcast {word} : i32 to {words}")
        t = shaped(self.b.dtype, self.mma.group * self.mma.lanes)
        return self.p.do(f"vector.bitcast {spread} : {words} to {t}")


class _WordSums(_MmaSums):
    """Sums along the lanes: neighbours of a row, which are one word, times those of each lane."""

    def __init__(self, p: Printer, node: Node, mma: Mma) -> None:
        super().__init__(p, node, mma)
        self.mma: Mma = mma
        self.b = replace(self.b, to=self.b.dtype)  # the instruction widens
        self.is_packed = self.lane_stride == mma.group
        if self.is_packed:
            self.axes.pop()  # of neighbours
        else:
            self.widen_steps(mma.group)

    def _width(self, node: Node) -> int:
        assert self.mma is not None
        return self.mma.lanes

    def rows(self) -> list[str]:
        made = _parts(super().rows(), self.lanes // self.width)
        return [self._joined(row) for row in self.without_offset(made)]

    def _joined(self, parts: list[str]) -> str:
        """Vectors one after another as one."""
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
        """Neighbours of some lanes."""
        p, group, width = self.p, self.mma.group, self.width
        right = at(p, right, lane * self.lane_stride, self.b.dtype)
        if self.is_packed:
            return self.b.read(p, right, group * width)
        apart = self.b_stride[self.axes[-1][0]] // group
        rows = [self.b.read(p, at(p, right, i * apart, self.b.dtype), width) for i in range(group)]
        return zipped(p, rows, self.b.dtype, width)

    def _word(self, left: str) -> str:
        """Neighbours of a row, as the instruction takes them."""
        p, size = self.p, self.a.dtype.bytes
        word = p.do(f"llvm.load {left} {{alignment = {size} : i64}} : !llvm.ptr -> i32")
        # raised by half of what 8 bits hold: another sign
        return p.do(f"arith.xori {word}, {self.offset_word()} : i32") if self.mma.offset else word


class _DepthSums(_MmaSums):
    """Sums along the contracted axis, which both operands have last: a vector for each element.

    A few lanes at a time, so that their sums are in registers; what a vector holds is added up at
    the end.
    """

    def __init__(self, p: Printer, node: Node, mma: Mma | None) -> None:
        super().__init__(p, node, mma)
        self.run = self.width * (mma.group if mma else 1)
        self.widen_steps(self.run)
        self.few = min(self.lanes, p.cpu.sums_beside(len(self.offsets)))

    def _width(self, node: Node) -> int:
        return self.mma.lanes if self.mma else self.p.cpu.vector_bytes // node.dtype.bytes

    def rows(self) -> list[str]:
        p = self.p
        lefts = [at(p, self.a.base, offset, self.a.dtype) for offset in self.offsets]
        made: list[list[str]] = []  # of each lane the sums of all rows
        for lane in range(0, self.lanes, self.few):
            right = at(p, self.b.base, lane * self.lane_stride, self.b.dtype)
            sums = self.sum(0, lefts, right, [self.zero] * (len(lefts) * self.few))
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
        """A part of a row, as the instruction takes it."""
        if not self.mma or not self.mma.offset:
            return row
        words, t = self.as_words(row)
        offsets, _ = self.as_words(self.from_words(self.offset_word()))
        raised = self.p.do(f"arith.xori {words}, {offsets} : {t}")
        return self.p.do(f"vector.bitcast {raised} : {t} to {shaped(self.a.dtype, self.run)}")

    def _row(self, parts: list[str]) -> str:
        """The sums of vectors as one vector."""
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
    """Runs of so many."""
    return [list(values[i : i + count]) for i in range(0, len(values), count)]
