"""Computes a dot as MLIR text: accumulators in registers, in loops over contracted axes."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.target.record import FIRST_LEVEL, LINE

from .access import Accesses
from .elementwise import Unprintable, shaped
from .views import View, at, fetched, in_memory, step, view
from .writer import multiply_add

BLOCKS = 8192, 256  # products per block of a sum, and per block inside of it
STEPS = 16  # steps of the last axis between prefetches, if they do not follow from a cache line
AHEAD = 2048  # prefetch distance in a panel, in bytes
TURNED_AHEAD = 16  # prefetch distance in steps, if each step reads other lines of the rows
# Steps of the last axis per iteration of its loop (unrolling), if they divide it. If two threads
# share a core, loop counting competes with multiply-adds. More unrolling takes longer to compile.
AT_ONCE = 2


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


FIRST, SECOND = 3, 2  # cache levels, in LLVM's numbering


def prefetch(p: Accesses, address: str, level: int) -> None:
    """Prefetch the cache line of an address, for reading."""
    how = f"cache = 1 : i32, hint = {level} : i32, rw = 0 : i32"
    p.put(f'"llvm.intr.prefetch"({address}) <{{{how}}}> : (!llvm.ptr) -> ()')


def fetches_of(p: Accesses, node: Node) -> list[View]:
    """Returns the blocks that `fetch` ops name: such an op wraps an operand of a matmul, and names
    blocks to prefetch while it is read.
    """
    return [view(p, block) for arg in node.args for block in fetched(arg)]


def prefetch_part(p: Accesses, block: View, number: str, steps: int) -> None:
    """Prefetches to L2 the cache lines of a block that belong to iteration `number` of `steps`.

    Does so only for a block whose rows have a constant stride. Iterations after the last line has
    been prefetched prefetch it again.
    """
    runs = [(s, t) for s, t in zip(block.shape, block.strides) if s != 1]
    *outer, (size, _) = runs or [(1, 1)]
    while outer and outer[-1][1] == size:  # contiguous rows are merged
        size *= outer.pop()[0]
    if len(outer) > 1:
        return
    rows, apart = outer[0] if outer else (1, size)
    lines = -(-size * block.dtype.bytes // LINE)
    each = -(-rows * lines // steps)
    first = p.do(f"arith.muli {number}, {p.constant(f'{each} : i64')} : i64")
    for i in range(each):
        line = p.do(f"arith.addi {first}, {p.constant(f'{i} : i64')} : i64") if i else first
        if each * steps > rows * lines:
            last = p.constant(f"{rows * lines - 1} : i64")
            line = p.do(f"arith.minui {line}, {last} : i64")
        base = block.base
        if rows > 1:
            many = p.constant(f"{lines} : i64")
            base = step(p, base, p.do(f"arith.divui {line}, {many} : i64"), apart, block.dtype)
            line = p.do(f"arith.remui {line}, {many} : i64")
        prefetch(p, step(p, base, line, LINE // block.dtype.bytes, block.dtype), SECOND)


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
        sums = [self.zero] * (len(lefts) * (self.lanes // self.width))
        self.sum(0, lefts, self.b.base, sums)
        return sums

    def products(self, lefts: Sequence[str], right: str, sums: Sequence[str]) -> list[str]:
        """Adds left * right, at one index of all contracted axes, to the accumulator of each row.

        `lefts`: addresses of each row's element; `right`: address of the vector.
        """
        p, line, made = self.p, self.b.read(self.p, right, self.lanes), list[str]()
        for left, total in zip(lefts, sums, strict=True):
            row = self.a.read(p, left, self.lanes if self.is_by_lane else 0)
            if not self.is_by_lane:
                row = p.do(f"vector.broadcast {row} : {shaped(self.a.to)} to {self.type}")
            made.append(self.multiply_add(row, line, total))
        return made

    def sum(self, depth: int, lefts: list[str], right: str, sums: list[str]) -> None:
        """Prints loops over the contracted axes from number `depth` on, which update the sums.

        `lefts` and `right`: the operands' addresses at index 0 of these axes.
        """
        if depth == len(self.axes):
            sums[:] = self.products(lefts, right, sums)
            return
        extent = self.axes[depth][1]
        zero, end = (self.p.constant(f"{n} : i64") for n in (0, extent))
        inner = math.prod(size for _, size in self.axes[depth + 1 :])
        sizes = [-(-b // inner) for b in BLOCKS if inner < 2 * b <= extent * inner]
        blocks = sizes if self.dtype.is_float else []
        self._blocked(depth, lefts, right, zero, end, blocks, sums)

    def _blocked(
        self,
        depth: int,
        lefts: list[str],
        right: str,
        first: str,
        last: str,
        sizes: Sequence[int],
        sums: list[str],
    ) -> None:
        """Sums over a range of a contracted axis, in nested blocks of the given sizes."""
        if not sizes:
            self._walk(depth, lefts, right, first, last, sums)
            return
        p, (size, *smaller) = self.p, sizes
        length = p.constant(f"{size} : i64")
        with self.loop(first, last, length, sums) as start:
            past = p.do(f"arith.addi {start}, {length} : i64")
            end = p.do(f"arith.minsi {past}, {last} : i64")
            block = [self.zero] * len(sums)
            self._blocked(depth, lefts, right, start, end, smaller, block)
            pairs = zip(sums, block, strict=True)
            sums[:] = [p.do(f"arith.addf {a}, {b} : {self.type}") for a, b in pairs]

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
        self, depth: int, lefts: list[str], right: str, first: str, last: str, sums: list[str]
    ) -> None:
        """Sums over a contracted axis from index `first` to `last`.

        If rows or later blocks are prefetched, the loop over the last axis is nested: the outer
        loop prefetches once per cache line.
        """
        p, (name, extent) = self.p, self.axes[depth]
        is_last = depth == len(self.axes) - 1
        count = AT_ONCE if is_last and extent % AT_ONCE == 0 else 1  # only this axis is unrolled
        one = p.constant(f"{count} : i64")
        apart = self.a_stride[name] * self.a.dtype.bytes
        is_line = apart in (1, 2, 4, 8)
        rows = lefts if self.ahead and is_line else []
        if not is_last or not (rows or self.fetches):
            self._steps(depth, lefts, right, first, last, one, count, sums)
            return
        size = LINE // apart if is_line else STEPS
        by = p.constant(f"{size} : i64")
        with self.loop(first, last, by, sums) as k:
            for left in rows:
                row = at(p, left, self.ahead, self.a.dtype)
                prefetch(p, step(p, row, k, self.a_stride[name], self.a.dtype), FIRST)
            for block in self.fetches:
                prefetch_part(p, block, p.do(f"arith.divui {k}, {by} : i64"), -(-extent // size))
            past = p.do(f"arith.addi {k}, {by} : i64")
            end = p.do(f"arith.minsi {past}, {last} : i64") if extent % size else past
            self._steps(depth, lefts, right, k, end, one, count, sums)

    def _steps(
        self,
        depth: int,
        lefts: list[str],
        right: str,
        first: str,
        last: str,
        by: str,
        count: int,
        sums: list[str],
    ) -> None:
        """Prints the loop over a contracted axis, around those over the axes inside it. Each of its
        iterations takes `count` steps.
        """
        p, name = self.p, self.axes[depth][0]
        is_last = depth == len(self.axes) - 1
        near = self._near() if is_last else range(0)
        ends = (0, -1) if is_last and self._is_turned() else ()
        a, b = self.a_stride[name], self.b_stride[name]
        with self.loop(first, last, by, sums) as k:
            inner = [step(p, left, k, a, self.a.dtype) for left in lefts]
            below = step(p, right, k, b, self.b.dtype)
            for number in range(count):
                beside = [at(p, left, number * a, self.a.dtype) for left in inner]
                next_ = at(p, below, number * b, self.b.dtype)
                for place in near:
                    prefetch(p, at(p, next_, place, self.b.dtype), FIRST)
                for left in dict.fromkeys(beside[i] for i in ends):
                    prefetch(p, at(p, left, TURNED_AHEAD * a, self.a.dtype), FIRST)
                self.sum(depth + 1, beside, next_, sums)

    @contextmanager
    def loop(self, first: str, last: str, by: str, sums: list[str]) -> Generator[str]:
        """Prints a loop around the statements that are printed inside; yields its index.

        The accumulators are its loop-carried values: inside, `sums` holds those of an iteration,
        which the statements replace; afterwards, it holds the results.
        """
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
        sums[:] = carried
        yield k
        p.put(f"scf.yield {', '.join(sums)} : {types}")
        p.depth -= 1
        p.put("}")
        sums[:] = [f"{result}#{i}" for i in range(len(sums))]

    def multiply_add(self, left: str, right: str, total: str) -> str:
        """left * right + total; with one rounding, if the CPU has multiply-adds."""
        if self.dtype.is_float:
            return self.p.do(multiply_add(left, right, total, self.type))
        product = self.p.do(f"arith.muli {left}, {right} : {self.type}")
        return self.p.do(f"arith.addi {product}, {total} : {self.type}")
