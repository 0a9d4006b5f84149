"""Computes a dot as MLIR text: accumulators in registers, in loops over contracted axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.target.record import FIRST_LEVEL, LINE

from .access import Accesses
from .elementwise import Unprintable, shaped
from .fetch import FIRST, fetches_of, prefetch
from .views import at, in_memory, step, view
from .writer import multiply_add

BLOCKS = 8192, 256  # products per block of a sum, and per block inside of it
STEPS = 16  # steps of the last axis between prefetches, if they do not follow from a cache line
AHEAD = 2048  # prefetch distance in a panel, in bytes
TURNED_AHEAD = 16  # prefetch distance in steps, if each step reads other lines of the rows
# Steps of the last axis per iteration of its loop (unrolling), if they divide it. If two threads
# share a core, loop counting competes with multiply-adds. More unrolling takes longer to compile.
AT_ONCE = 2

Step = Callable[[str, list[str]], list[str]]  # takes an index of an axis, and sums; returns sums
Walk = Callable[[str, str, list[str]], list[str]]  # the same for a range of an axis


class Operands:
    """Both operands of a dot, in memory.

    Attributes:
        a, b: the operand without lanes, and the one with lanes.
        axes: the contracted axes with their extents, in the order of `b`.
        offsets: of the rows of `a`, in elements.
    """

    def __init__(self, p: Accesses, node: Node) -> None:
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
            raise Unprintable("a dot whose lanes are strided in memory")
        self.axes = [(n, extents[n]) for n in names[right] if n in shared and extents[n] > 1]
        self.offsets, self.row_stride = [0], 0
        if len(output) == 2:
            self.row_stride = self.a_stride[output[0]]
            self.offsets = [self.row_stride * r for r in range(extents[output[0]])]

    def join_axes(self) -> None:
        """Merges adjacent contracted axes that are contiguous in both operands into one axis."""
        made: list[tuple[str, int]] = []
        for name, extent in self.axes:
            strides = self.a_stride, self.b_stride
            if made and all(s[made[-1][0]] == extent * s[name] for s in strides):
                extent *= made.pop()[1]
            made.append((name, extent))
        self.axes = made

    def is_far(self) -> bool:
        """True if the right operand is packed for this loop order and does not fit in L1.

        Packed: each index of the last contracted axis is a full vector of lanes, one after the
        other.
        """
        width = self.lanes * self.lane_stride
        size = width * math.prod(extent for _, extent in self.axes) * self.b.dtype.bytes
        return self.b_stride[self.axes[-1][0]] == width and size > FIRST_LEVEL


class Sums(Operands):
    """Accumulators in registers, one vector per row, in a loop over each contracted axis.

    Long sums are split into blocks that start from zero, because rounding errors grow with length.
    """

    def __init__(self, p: Accesses, node: Node) -> None:
        super().__init__(p, node)
        self.dtype = node.dtype
        self.ahead = self.row_stride * node.attrs.get("ahead", 0)
        self.fetches = fetches_of(p, node) if len(self.axes) == 1 else []
        self.width = self._width(node)
        self.type = shaped(self.dtype, self.width)
        self.zero = p.number(0, self.dtype, self.width)

    def _width(self, node: Node) -> int:
        """Returns the number of lanes of an accumulator vector."""
        if self.lane_stride != 1:
            raise Unprintable("a dot whose lanes are strided in memory")
        return self.lanes

    def rows(self) -> list[str]:
        """Prints the dot; returns its accumulators, one or more vectors per row of the result."""
        lefts = [at(self.p, self.a.base, offset, self.a.dtype) for offset in self.offsets]
        zeros = [self.zero] * (len(lefts) * (self.lanes // self.width))
        return self.sum(0, lefts, self.b.base, zeros)

    def products(self, lefts: Sequence[str], right: str, sums: Sequence[str]) -> list[str]:
        """Adds left * right, at one index of all contracted axes, to the accumulator of each row.

        `lefts`: addresses of each row's element; `right`: address of the vector.
        """
        line = self.b.read(self.p, right, self.lanes)
        return [self._multiply(left, line, total) for left, total in zip(lefts, sums, strict=True)]

    def sum(self, depth: int, lefts: list[str], right: str, sums: list[str]) -> list[str]:
        """Prints loops over the contracted axes from number `depth` on; returns the new sums.

        `lefts` and `right`: the operands' addresses at index 0 of these axes.
        """
        p = self.p
        if depth == len(self.axes):
            return self.products(lefts, right, sums)
        name, extent = self.axes[depth]
        is_last = depth == len(self.axes) - 1
        near = self._near() if is_last else range(0)
        ends = (0, -1) if is_last and self._is_turned() else ()

        def add(k: str, totals: list[str]) -> list[str]:
            a, b = self.a_stride[name], self.b_stride[name]
            inner = [step(p, left, k, a, self.a.dtype) for left in lefts]
            below = step(p, right, k, b, self.b.dtype)
            for number in range(self._at_once(depth)):
                beside = [at(p, left, number * a, self.a.dtype) for left in inner]
                next_ = at(p, below, number * b, self.b.dtype)
                for place in near:
                    prefetch(p, at(p, next_, place, self.b.dtype), FIRST)
                for left in dict.fromkeys(beside[i] for i in ends):
                    prefetch(p, at(p, left, TURNED_AHEAD * a, self.a.dtype), FIRST)
                totals = self.sum(depth + 1, beside, next_, totals)
            return totals

        zero, end = (p.constant(f"{n} : i64") for n in (0, extent))
        inner = math.prod(size for _, size in self.axes[depth + 1 :])
        sizes = [-(-b // inner) for b in BLOCKS if inner < 2 * b <= extent * inner]
        walk = partial(self._walk, depth, lefts, add=add)
        return self._blocked(zero, end, sizes if self.dtype.is_float else [], sums, walk)

    def _blocked(
        self, first: str, last: str, sizes: Sequence[int], sums: list[str], walk: Walk
    ) -> list[str]:
        """Sums over a range of an axis, in nested blocks of the given sizes."""
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

    def _at_once(self, depth: int) -> int:
        """Returns the unroll factor of the loop over an axis; only the last axis is unrolled."""
        is_last, extent = depth == len(self.axes) - 1, self.axes[depth][1]
        return AT_ONCE if is_last and extent % AT_ONCE == 0 else 1

    def _near(self) -> range:
        """Returns offsets, in elements, of the cache lines that each iteration prefetches to L1.

        They are some iterations ahead in the packed right operand; empty if that fits in L1.
        """
        if not self.is_far():
            return range(0)
        width = self.lanes * self.lane_stride
        first = -(-AHEAD // (width * self.b.dtype.bytes)) * width
        return range(first, first + width, LINE // self.b.dtype.bytes)

    def _is_turned(self) -> bool:
        """True if neighbours in a cache line of the left operand are rows, not contracted elements.

        And only if the loop over the last contracted axis then touches more cache lines than fit in
        L1.
        """
        name, extent = self.axes[-1]
        step, row = (n * self.a.dtype.bytes for n in (self.a_stride[name], self.row_stride))
        return 0 < row < LINE <= step and extent * LINE > FIRST_LEVEL

    def _walk(
        self,
        depth: int,
        lefts: Sequence[str],
        first: str,
        last: str,
        sums: list[str],
        add: Step,
    ) -> list[str]:
        """Prints the loop over a contracted axis from index `first` to `last`; returns the sums.

        If rows or later blocks are prefetched, the loop over the last axis is nested: the outer
        loop prefetches once per cache line.
        """
        p, (name, extent) = self.p, self.axes[depth]
        one = p.constant(f"{self._at_once(depth)} : i64")
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
        """Prints a loop whose loop-carried values are the accumulators; returns its results."""
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
        """left * right + total; with one rounding, if the CPU has multiply-adds."""
        if self.dtype.is_float:
            return self.p.do(multiply_add(left, right, total, self.type))
        product = self.p.do(f"arith.muli {left}, {right} : {self.type}")
        return self.p.do(f"arith.addi {product}, {total} : {self.type}")
