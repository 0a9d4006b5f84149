"""Kernels around a matrix product on a GPU: the frame of all schedules, and what follows the dot.

A block of threads computes one tile. What follows the dot is done on short vectors of its result,
by whichever thread has them. Rows and columns that a tile is padded with are computed and not
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.axes import parse_rule
from stack.ir.node import Block, Node
from stack.ir.traits import converts, is_alias, is_loop, maker, unconverted
from stack.ir.types import DType
from stack.passes.cpu_loops.chunk import Chunk, is_fold, is_memory, plus, reachable
from stack.passes.cpu_loops.gemm import find_dot
from stack.passes.gpu_loops.frame import CannotDistribute, Threads
from stack.passes.gpu_loops.operand import Operand
from stack.passes.tiling.frame import wide

GROUP = 8  # columns of tiles that neighbouring blocks stay within, to find operands in the cache


@dataclass(frozen=True)
class Store:
    """One output of the kernel: how a vector of the product gets there.

    Attributes:
        row: the index of the loop over rows, None where the whole tile is stored.
        memory: the memory that the store starts from, as the loop knows it.
        store: the store itself.
    """

    row: Node | None
    memory: Node
    store: Node


class Product:
    """One kernel with a dot; schedules derive from it. Also what chunks share."""

    def __init__(self, block: Block) -> None:
        self.t = Threads(block)
        self.b = self.t.b
        self.fresh = self.t.fresh
        self.note = self.t.note
        self.scalars: dict[Node, Node] = {}
        self.kept: dict[Node, Node] = {}
        dot = find_dot(block)
        assert dot is not None
        self.dot = dot
        rule = parse_rule(dot.attrs["rule"])
        names = [[a.names[0] for a in operand] for operand in rule.inputs]
        output = [a.names[0] for a in rule.outputs[0]]
        lane, row = output[-1], output[0] if len(output) == 2 else ""
        right = 1 if lane in names[1] else 0
        summed = [n for n in names[right] if n in names[1 - right] and n not in output]
        grid = {loop.blocks[0].params[0] for loop in self.t.nest}
        loads = [_load(a) for a in dot.args]
        if not grid.issuperset(dot.vars):
            raise CannotDistribute("its product is part of a loop")
        sizes = dict(zip(names[right], loads[right].shape, strict=True))
        summed = [n for n in summed if sizes[n] != 1] or summed[-1:]
        self.left = Operand(self.t, loads[1 - right], names[1 - right], row, summed)
        self.right = Operand(self.t, loads[right], names[right], lane, summed)
        self.rows, self.columns, self.depth = self.left.extent, self.right.extent, self.left.depth
        self.dtype: DType = wide(dot.dtype)
        self.swap: dict[Node, Node] = {}
        nodes = reachable(self.t.program.results)
        if any(is_fold(n) for n in nodes):
            raise CannotDistribute("it reduces the result of its product")
        if not self.left.own and any(n.op == "alloc" for n in nodes):
            raise CannotDistribute("its product is one row that goes through memory")
        self.lines = self._lines(nodes)
        self.stores = [self._store_of(s) for s in self.t.program.results]

    def kept_at(self, offset: Node) -> Sequence[Node]:
        raise NotImplementedError

    # ---- what follows the dot

    def _lines(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes that are one row of the product."""
        if not self.left.own:
            return [n for n in nodes if n is self.dot or (is_alias(n) and self.dot in n.args)]
        held = {n for n in nodes if n.op == "store" and n.args[1] is self.dot}
        return [n for n in nodes if n.op == "load" and n.args[0] in held]

    def _store_of(self, sink: Node) -> Store:
        loop = maker(sink)
        if is_loop(loop):
            block = loop.blocks[0]
            stored = block.results[0]
            if len(block.params) == 2 and stored.op == "store" and is_memory(block.params[1]):
                return Store(block.params[0], block.params[1], stored)
        elif sink.op == "store":
            return Store(None, sink.args[0], sink)
        raise CannotDistribute(f"its result goes through {loop.op}")

    def finish(
        self, held: Sequence[Node], row: Node, column: Node, lanes: int, value: Node
    ) -> list[Node]:
        """Memories after `lanes` elements of the product are stored.

        Args:
            row: of the tile; it may lie in the padding, and so may `column`.
            value: a vector of the product.
        """
        b, tests = self.b, list[Node]()
        if self.left.padded > self.rows:
            tests.append(b.lt(row, self.rows))
            row = b.min(row, self.rows - 1)
        if self.right.padded > self.columns:
            tests.append(b.lt(column, self.columns))
            column = b.min(column, self.columns - lanes)
        mask = b.and_(*tests) if len(tests) == 2 else next(iter(tests), None)
        after: list[Node] = []
        for found, memory in zip(self.stores, held, strict=True):
            chunk = Chunk(self, column, lanes)
            chunk.swap = {**self.swap, **dict.fromkeys(self.lines, value)}
            if found.row is not None:
                chunk.swap[found.row] = row
            if self.left.own and found.row is None:
                made = self._store_whole(chunk, found.store, memory, row, column, value)
            else:
                made = chunk.sink(found.store, memory)
            if mask is not None:
                made = b.op("store", [*made.args, mask])
            self.note(found.store, made)
            after.append(made)
        return after

    def _store_whole(
        self, chunk: Chunk, store: Node, memory: Node, row: Node, column: Node, value: Node
    ) -> Node:
        """A part of a tile that nothing follows but a conversion."""
        stored = store.args[1]
        inner = stored
        while converts(inner) or is_alias(inner):
            inner = inner.args[0]
        if inner is not self.dot:
            raise CannotDistribute(f"its product goes through {inner.op}")
        index = [chunk.value(i) for i in store.args[2:]]
        axis = len(index) - len(stored.shape)  # the row's is the first axis of the tile
        index[axis] = plus(self.b, index[axis], row)
        index[-1] = plus(self.b, index[-1], column)
        if stored.dtype != value.dtype:
            value = self.b.cast(value, type=value.tensor.with_dtype(stored.dtype))
        return self.b.store(memory, value, *index)

    def result_lanes(self, most: int) -> int:
        """Elements of the vectors in which the result is stored."""
        lanes = most
        while self.columns % lanes:
            lanes //= 2
        return lanes

    # ---- the grid

    def place_block(self, step: Node) -> None:
        """The old grid's indices for a block. Neighbours take a few columns of tiles together."""
        nest = self.t.nest
        moves = [n.blocks[0].params[0] in self.right.load.vars for n in nest]
        if len(nest) < 2 or moves[-1] or not moves[-2]:
            self.swap = self.t.grid_swap(step)
            return
        across, down = (int(n.blocks[0].params[0].attrs["extent"]) for n in nest[-2:])
        group = next(g for g in range(GROUP, 0, -1) if across % g == 0)
        b = self.b
        plane, place = b.div(step, across * down), b.rem(step, across * down)
        block, inside = b.div(place, group * down), b.rem(place, group * down)
        self.swap = self.t.grid_swap(plane, nest[:-2])
        self.swap[nest[-2].blocks[0].params[0]] = b.add(b.mul(block, group), b.rem(inside, group))
        self.swap[nest[-1].blocks[0].params[0]] = b.div(inside, group)

    def start_of(self, node: Node) -> Node:
        """A start of the tile, in new indices."""
        return Chunk(self, self.t.int(0), 1).child(self.swap).value(node)


def _load(operand: Node) -> Node:
    """The block of memory that an operand of a dot is."""
    load = unconverted(operand)
    if load.op != "load" or any(i.tensor.rank for i in load.args[1:]):
        raise CannotDistribute(f"an operand of its product is made by {load.op}")
    return load
