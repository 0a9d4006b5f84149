"""The micro-kernel of a dot as MLIR text: sums in vector registers, in loops over contracted axes.

It is made of multiply-adds, or of an instruction for short numbers; `amx` has another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.target import Mma

from .elementwise import Unprintable, shaped
from .mma import mma_of
from .views import at, in_memory, step, view

if TYPE_CHECKING:
    from .printer import Printer

BLOCK = 256  # products that are added up one after another
LONG = 2 * BLOCK


def multiply(p: Printer, node: Node) -> list[str]:
    """The rows of a dot."""
    mma = mma_of(node, p.cpu)
    return (_Sums(p, node) if mma is None else _PairSums(p, node, mma)).rows()


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
        self.axes = [(n, extents[n]) for n in names[right] if n in shared and extents[n] > 1]
        self.offsets = [0]
        if len(output) == 2:
            self.offsets = [self.a_stride[output[0]] * r for r in range(extents[output[0]])]


class _Sums(Operands):
    """Sums in registers, one vector for each row, over a loop for each contracted axis.

    A long axis is summed in blocks that start from zero: rounding grows with their number.
    """

    def __init__(self, p: Printer, node: Node) -> None:
        super().__init__(p, node)
        self.dtype = node.dtype
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

        def add(k: str, totals: list[str]) -> list[str]:
            inner = [step(p, left, k, self.a_stride[name], self.a.dtype) for left in lefts]
            below = step(p, right, k, self.b_stride[name], self.b.dtype)
            return self.sum(depth + 1, inner, below, totals)

        zero, one, end = (p.constant(f"{n} : i64") for n in (0, 1, extent))
        if extent < LONG or not self.dtype.is_float:
            return self.loop(zero, end, one, sums, add)
        length = p.constant(f"{BLOCK} : i64")

        def add_block(first: str, totals: list[str]) -> list[str]:
            past = p.do(f"arith.addi {first}, {length} : i64")
            last = p.do(f"arith.minsi {past}, {end} : i64") if extent % BLOCK else past
            block = self.loop(first, last, one, [self.zero] * len(sums), add)
            pairs = zip(totals, block, strict=True)
            return [p.do(f"arith.addf {a}, {b} : {self.type}") for a, b in pairs]

        return self.loop(zero, end, length, sums, add_block)

    def loop(
        self,
        first: str,
        last: str,
        by: str,
        sums: list[str],
        body: Callable[[str, list[str]], list[str]],
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
        scalar = self.a.read(p, left, 0)
        many = p.do(f"vector.broadcast {scalar} : {shaped(self.a.to, 0)} to {self.type}")
        if self.dtype.is_float:
            return p.do(f"math.fma {many}, {line}, {total} : {self.type}")
        product = p.do(f"arith.muli {many}, {line} : {self.type}")
        return p.do(f"arith.addi {product}, {total} : {self.type}")


class _PairSums(_Sums):
    """The same with an instruction of vectors that multiplies neighbours."""

    def __init__(self, p: Printer, node: Node, mma: Mma) -> None:
        self.mma = mma
        super().__init__(p, node)
        self.axes.pop()  # of neighbours
        if mma.offset:  # one row more: products with the offset alone
            self.offsets = [*self.offsets, 0]

    def _width(self, node: Node) -> int:
        return self.mma.lanes

    def rows(self) -> list[str]:
        made = _parts(super().rows(), self.lanes // self.width)
        if self.mma.offset:
            *made, more = made
            made = [
                [self.p.do(f"arith.subi {x}, {y} : {self.type}") for x, y in zip(row, more)]
                for row in made
            ]
        return [self._joined(list(row)) for row in made]

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
        p, group, width = self.p, self.mma.group, self.width
        pairs = shaped(self.b.dtype, group * width)
        places = range(0, self.lanes, width)
        lines = [
            self.b.read(p, at(p, right, place * group, self.b.dtype), group * width)
            for place in places
        ]
        made: list[str] = []
        totals = _parts(sums, len(lines))
        words = [self._word(left) for left in lefts]
        if self.mma.offset:
            words[-1] = self._offset()
        for word, total in zip(words, totals, strict=True):
            spread = p.do(f"vector.broadcast {word} : i32 to vector<{width}xi32>")
            many = p.do(f"vector.bitcast {spread} : vector<{width}xi32> to {pairs}")
            made += [
                p.do(
                    f'llvm.call_intrinsic "{self.mma.intrinsic}"({x}, {many}, {line})'
                    f" : ({self.type}, {pairs}, {pairs}) -> {self.type}"
                )
                for x, line in zip(total, lines, strict=True)
            ]
        return made

    def _word(self, left: str) -> str:
        """Neighbours of a row, as the instruction takes them."""
        p, size = self.p, self.a.dtype.bytes
        word = p.do(f"llvm.load {left} {{alignment = {size} : i64}} : !llvm.ptr -> i32")
        # raised by half of what 8 bits hold: another sign
        return p.do(f"arith.xori {word}, {self._offset()} : i32") if self.mma.offset else word

    def _offset(self) -> str:
        """The offset for each neighbour."""
        each = [self.mma.offset] * self.mma.group
        return self.p.constant(f"{int.from_bytes(bytes(each), 'little', signed=True)} : i32")


def _parts(values: Sequence[str], count: int) -> list[Sequence[str]]:
    """Runs of so many."""
    return [values[i : i + count] for i in range(0, len(values), count)]
