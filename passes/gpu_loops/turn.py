"""Elementwise kernels that read an operand across: squares of it are turned in shared memory.

Where neighbours along the tile axis lie far apart in an operand, but neighbours along a grid axis
next to each other, a block of threads takes a square of both axes. It reads the operand along the
one, and after a barrier everything else along the other, so that all accesses to global memory are
along rows. Rows of the square are one element longer than what they hold: a column of it then lies
in 32 different banks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.warp_ops import WARP
from stack.passes.cpu_loops.chunk import Chunk, Sweeps, is_fold, is_tile, origin_of, reachable
from stack.passes.gpu_loops.frame import Threads, index

WARPS = 8
LEAST = 16  # extent of both axes from which squares pay
MOST_OPERANDS = 8


def distribute_turned(block: Block) -> Block | None:
    """The kernel's block at the loop level; None where nothing is read across."""
    threads = Threads(block)
    found = _read_across(threads)
    return _Turned(threads, *found).block() if found is not None else None


def _read_across(t: Threads) -> tuple[Node, list[Node]] | None:
    """The grid loop along which operands are read in order, and those loads."""
    sinks = t.program.results
    nodes = reachable(sinks)
    if any(is_fold(n) or n.op == "loop" for n in nodes if n not in t.nest):
        return None
    if any(s.op != "store" or origin_of(s) not in t.outputs for s in sinks):
        return None
    by_index = {loop.blocks[0].params[0]: loop for loop in t.nest}
    loops: dict[Node, list[Node]] = {}
    for node in nodes:
        along = _grid_index(node) if node.op == "load" and is_tile(node) else None
        if along in by_index:
            loops.setdefault(by_index[along], []).append(node)
    if len(loops) != 1:
        return None
    ((loop, loads),) = loops.items()
    extents = (int(loop.blocks[0].params[0].attrs["extent"]), Sweeps(sinks).extent)
    if min(extents) < LEAST or len(loads) > MOST_OPERANDS:
        return None
    return loop, loads


def _grid_index(load: Node) -> Node | None:
    """The variable that is a load's last index, where another index moves along the tile."""
    place, mask, _ = access_parts(load)
    if mask is not None or not place or not any(is_tile(i) for i in place):
        return None
    last = place[-1]
    is_repeated = last.op == "broadcast" and not last.args[0].tensor.rank
    moves = any(is_tile(i) and i.op != "broadcast" for i in place[:-1])
    return last.args[0] if is_repeated and moves else None


class _Turned:
    """One kernel; also what its chunks share (see `chunk.Program`)."""

    def __init__(self, threads: Threads, loop: Node, loads: Sequence[Node]) -> None:
        self.t = threads
        self.b = threads.b
        self.fresh = threads.fresh
        self.note = threads.note
        self.scalars: dict[Node, Node] = {}
        self.kept: dict[Node, Node] = {}
        self.loads = loads
        self.row = loop.blocks[0].params[0]
        self.rows = int(self.row.attrs["extent"])
        self.columns = Sweeps(threads.program.results).extent
        self.others = [n for n in threads.nest if n is not loop]
        self.swap: dict[Node, Node] = {}

    def kept_at(self, offset: Node) -> Sequence[Node]:
        raise NotImplementedError

    def block(self) -> Block:
        """The kernel's block."""
        down, across = -(-self.rows // WARP), -(-self.columns // WARP)
        planes = math.prod(int(n.blocks[0].params[0].attrs["extent"]) for n in self.others)

        def program(step: Node, held: list[Node]) -> list[Node]:
            t, b = self.t, self.b
            plane, place = b.div(step, down * across), b.rem(step, down * across)
            self.swap = t.grid_swap(plane, self.others)
            row = b.mul(b.div(place, across), WARP)
            column = b.mul(b.rem(place, across), WARP)
            squares = [t.memory("shared", "square", n.dtype, WARP, WARP + 1) for n in self.loads]
            squares = t.over_warps(WARPS, squares, lambda m: self._read(m, row, column))
            return t.over_warps(WARPS, held, lambda m: self._write(m, squares, row, column))

        return self.t.kernel(planes * down * across, program)

    def _chunk(self, row: Node, column: Node) -> Chunk:
        """One element; past the end, the last one again."""
        t = self.t
        padded = -(-self.columns // WARP) * WARP
        chunk = Chunk(self, t.clamped(column, padded, self.columns), 1)
        padded = -(-self.rows // WARP) * WARP
        chunk.swap = {**self.swap, self.row: t.clamped(row, padded, self.rows)}
        return chunk

    def _line(self, turn: Node) -> Node:
        """The line of the square that a warp works on."""
        return self.b.add(self.b.mul(turn, WARPS), self.t.warp)

    def _read(self, held: list[Node], row: Node, column: Node) -> list[Node]:
        """Lines of the operands, along the rows of the result."""
        t, b = self.t, self.b

        def one(memories: list[Node], turn: Node) -> list[Node]:
            line = self._line(turn)
            chunk = self._chunk(b.add(row, t.lane), b.add(column, line))
            return [
                b.store(m, chunk.value(load), line, t.lane)
                for m, load in zip(memories, self.loads, strict=True)
            ]

        return self._turns(held, one)

    def _write(
        self, held: list[Node], squares: Sequence[Node], row: Node, column: Node
    ) -> list[Node]:
        """Lines of the result; what was read across comes from the squares."""
        t, b = self.t, self.b

        def one(memories: list[Node], turn: Node) -> list[Node]:
            line = self._line(turn)
            chunk = self._chunk(b.add(row, line), b.add(column, t.lane))
            for square, load in zip(squares, self.loads, strict=True):
                kind = load.tensor.with_shape((1,))
                chunk.swap[load] = b.load(square, t.lane, line, type=kind)
            return [chunk.sink(s, m) for s, m in zip(t.program.results, memories, strict=True)]

        return self._turns(held, one)

    def _turns(self, held: list[Node], one: Callable[[list[Node], Node], list[Node]]) -> list[Node]:
        """All lines of the square that a warp has."""
        t = self.t
        turn = index(self.fresh("r"), WARP // WARPS)

        def lanes(memories: list[Node]) -> list[Node]:
            return t.over("unroll", turn, memories, lambda m: one(m, turn))

        return t.over_lanes(held, lanes)
