"""Prefetches the memory of a later block, line by line, between the steps of a matmul."""

from __future__ import annotations

from stack.ir.node import Node
from stack.target.record import LINE

from .access import Accesses
from .views import fetched, step, view

FIRST, SECOND = 3, 2  # cache levels, in LLVM's numbering


def prefetch(p: Accesses, address: str, level: int) -> None:
    """Prefetch the cache line of an address, for reading."""
    how = f"cache = 1 : i32, hint = {level} : i32, rw = 0 : i32"
    p.put(f'"llvm.intr.prefetch"({address}) <{{{how}}}> : (!llvm.ptr) -> ()')


class Fetch:
    """Prefetches the cache lines of a block of memory to L2, a few in each loop iteration.

    Does so only for a block whose rows have a constant stride.
    """

    def __init__(self, p: Accesses, block: Node) -> None:
        self.p, self.block = p, view(p, block)
        runs = [(s, t) for s, t in zip(self.block.shape, self.block.strides) if s != 1]
        *outer, (size, _) = runs or [(1, 1)]
        while outer and outer[-1][1] == size:  # contiguous rows are merged
            size *= outer.pop()[0]
        self.apart = outer[-1][1] if outer else size
        self.lines = -(-size * self.block.dtype.bytes // LINE)
        self.rows = outer[-1][0] if outer else 1
        self.is_plain = len(outer) < 2  # rows with a constant stride

    def step(self, number: str, steps: int) -> None:
        """Prints prefetches of the cache lines that belong to iteration `number` of `steps`.

        Iterations after the last line has been prefetched prefetch it again.
        """
        if not self.is_plain:
            return
        p, total = self.p, self.rows * self.lines
        each = -(-total // steps)
        first = p.do(f"arith.muli {number}, {self._number(each)} : i64")
        for i in range(each):
            line = p.do(f"arith.addi {first}, {self._number(i)} : i64") if i else first
            if each * steps > total:
                line = p.do(f"arith.minui {line}, {self._number(total - 1)} : i64")
            self._line(line)

    def _line(self, number: str) -> None:
        """Prefetch one cache line of the block, by its number, counted row by row."""
        base, size = self.block.base, LINE // self.block.dtype.bytes
        if self.rows > 1:
            many = self._number(self.lines)
            base = self._past(base, self.p.do(f"arith.divui {number}, {many} : i64"), self.apart)
            number = self.p.do(f"arith.remui {number}, {many} : i64")
        prefetch(self.p, self._past(base, number, size), SECOND)

    def _past(self, base: str, index: str, stride: int) -> str:
        return step(self.p, base, index, stride, self.block.dtype)

    def _number(self, value: int) -> str:
        return self.p.constant(f"{value} : i64")


def fetches_of(p: Accesses, node: Node) -> list[Fetch]:
    """Returns the prefetches to print inside a matmul: of the blocks that `fetch` ops name.

    Such an op wraps an operand of the matmul and names blocks to prefetch while it is read.
    """
    return [Fetch(p, block) for arg in node.args for block in fetched(arg)]
