"""Rows that lie across in memory: turned a block at a time, so that each line is read once.

A program of one row whose elements are a column of memory takes one element of each line. Where the
grid walks along these lines, programs are computed in blocks: what they read is a block of whole
lines, which is transposed into memory of their own, and each row then reads its part of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stack.ir.builder import Builder, constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_input, is_load, is_number, is_positions, repeats
from stack.ir.types import I64, TensorType
from stack.passes.cpu_loops.chunk import is_tile, is_value, plus, reachable, tile_extent
from stack.passes.tiling.frame import static
from stack.passes.tiling.loops import index as index_var
from stack.passes.tiling.names import Names
from stack.target import Cpu

New = Callable[[Node], Node]
LEAST_ROWS = 8  # of a block; where a mask leaves out rows, memory may have fewer
CACHE_SHARE = 1 / 4  # of the second-level cache, for the rows of a block


@dataclass(frozen=True)
class Turned:
    """Loads of one program that lie across, and how many programs are computed together."""

    loads: tuple[Node, ...]
    rows: int

    def fill(self, b: Builder, load: Node, begin: Node, names: Names) -> Node:
        """Memory with the rows of a load from row `begin` on: one copy, which the printer turns.
        Where a mask may leave out rows, one more row has what stands for them."""
        memory, index, is_masked = load.args[0], _index(load), _mask(load) is not None
        along, extent = _column(index), tile_extent(load)
        if is_masked:  # it may say that a place is outside
            index = [_within(b, i, static(s) - 1) for i, s in zip(index, memory.shape, strict=True)]
        index[along] = begin_of(_index(load)[along]) or constant(0, I64)
        if is_masked:
            index[along] = _within(b, index[along], static(memory.shape[along]) - extent)
        index[-1] = self._start(b, load, begin)
        between = (1,) * (len(index) - along - 2)
        shape = TensorType(load.dtype, (extent, *between, self.rows), "tile")
        block = b.load(memory, *index, type=shape)
        if between:
            block = b.reshape(block, type=shape.with_shape((extent, self.rows)))
        own = TensorType(load.dtype, (self.rows + is_masked, extent), "local")
        corner = constant(0, I64)
        made = b.store(
            b.alloc(name=names.numbered("rows"), type=own),
            b.transpose(block, perm=(1, 0)),
            corner,
            corner,
        )
        return self._with_other(b, load, made, names) if is_masked else made

    def _with_other(self, b: Builder, load: Node, memory: Node, names: Names) -> Node:
        """The same memory with what a masked load has in place of a row, behind all rows."""
        other = access_parts(load)[2]
        assert other is not None
        name = str(memory.args[0].attrs["name"])
        lane = index_var(names.own(f"{name}_lane"), tile_extent(load))
        held = Node("var", (), {"name": names.own(f"{name}_more")}, memory.type)
        block = Block((lane, held), [b.store(held, other, constant(self.rows, I64), lane)])
        return b.op("loop", [memory], {"kind": "serial"}, (block,))

    def _start(self, b: Builder, load: Node, begin: Node) -> Node:
        """Where the block of a load starts, of rows from `begin` on; inside of its memory."""
        start = plus(b, begin, _past(load))
        if _mask(load) is None:
            return start
        return _within(b, start, static(load.args[0].shape[-1]) - self.rows)

    def row(
        self, b: Builder, load: Node, memory: Node, begin: Node, number: Node, new: New
    ) -> Node:
        """A row of what `fill` gives; `new`: what stands for values of the program there."""
        mask, corner = _mask(load), constant(0, I64)
        if mask is not None:
            place = b.sub(plus(b, b.add(begin, number), _past(load)), self._start(b, load, begin))
            number = b.select(new(mask), place, self.rows)
        return b.load(memory, number, corner, type=load.tensor)


def turned(program: Block, cpu: Cpu) -> Turned | None:
    """What lies across in a program of the innermost grid loop; None where nothing does."""
    row = program.params[0]
    nodes = reachable(program.results)
    inside = {p for n in nodes for b in n.blocks for p in b.params}
    loads = [n for n in nodes if _lies_across(n, row) and inside.isdisjoint(n.vars)]
    if not loads:
        return None
    rows = min(row.attrs["extent"], *(_most_rows(n, cpu) for n in loads))
    room = sum(rows * tile_extent(n) * n.dtype.bytes for n in loads)
    fits = room <= CACHE_SHARE * cpu.cache_bytes
    is_few = rows < (2 if any(map(_mask, loads)) else LEAST_ROWS)
    return Turned(tuple(loads), rows) if fits and not is_few else None


def _most_rows(load: Node, cpu: Cpu) -> int:
    """Rows that a vector holds; where a mask may leave out some, memory has as many."""
    rows = cpu.vector_bytes // load.dtype.bytes
    return rows if _mask(load) is None else min(rows, static(load.args[0].shape[-1]))


def _lies_across(node: Node, row: Node) -> bool:
    """Whether a load takes a column of memory, and the next row the next column."""
    if not is_load(node) or not is_value(node) or not is_input(node.args[0]):
        return False
    index, (_, mask, other) = _index(node), access_parts(node)
    if _last(index) is not row or node.dtype.kind == "b":
        return False
    moved = [i for i in index if is_tile(i)]
    others = [i for i in index[:-1] if not is_tile(i)]
    is_column = len(moved) == 1 and begin_of(moved[0]) is not None
    is_uniform = mask is None or (repeats(mask) and other is not None and is_number(other))
    return is_column and is_uniform and all(row not in i.vars for i in others)


def begin_of(index: Node) -> Node | None:
    """Where the lanes of an index begin that are one after another; None where they are not."""
    if is_positions(index):
        return constant(0, I64)
    if index.op != "add":
        return None
    lanes = next((a for a in index.args if is_positions(a)), None)
    begin = next((a for a in index.args if a is not lanes), None)
    return begin if lanes is not None and begin is not None and not is_tile(begin) else None


def _last(index: Sequence[Node]) -> Node:
    """The last index of a load without what is added to it."""
    last = index[-1]
    return last.args[0] if last.op == "add" and is_number(last.args[1]) else last


def _past(load: Node) -> Node:
    """What is added to the last index of a load."""
    last = _index(load)[-1]
    return constant(0, I64) if last is _last(_index(load)) else last.args[1]


def _mask(load: Node) -> Node | None:
    """The mask of a load, one for all lanes."""
    mask = access_parts(load)[1]
    return None if mask is None else mask.args[0]


def _within(b: Builder, index: Node, most: int) -> Node:
    """An index, made one from 0 to `most`."""
    if is_number(index):
        return constant(min(max(int(index.attrs["value"].array), 0), most), I64)
    return index if is_tile(index) else b.min(b.max(index, 0), most)


def _index(load: Node) -> list[Node]:
    """Where a load reads; what is the same for all lanes is a scalar."""
    return [i.args[0] if repeats(i) else i for i in access_parts(load)[0]]


def _column(index: Sequence[Node]) -> int:
    """The axis of memory along which lanes are."""
    return next(n for n, i in enumerate(index) if is_tile(i))
