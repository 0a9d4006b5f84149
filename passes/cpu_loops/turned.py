"""Rows that lie across in memory: turned a block at a time, so that each line is read once.

A program of one row whose elements are a column of memory takes one element of each line. Where the
grid walks along these lines, programs are computed in blocks: what they read is a block of whole
lines, which is transposed into memory of their own, and each row then reads its part of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.builder import Builder, constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_input, is_load, is_positions, repeats
from stack.ir.types import I64, TensorType
from stack.passes.cpu_loops.chunk import is_tile, is_value, reachable, tile_extent
from stack.target import Cpu

CACHE_SHARE = 1 / 4  # of the second-level cache, for the rows of a block


@dataclass(frozen=True)
class Turned:
    """Loads of one program that lie across, and how many programs are computed together."""

    loads: tuple[Node, ...]
    rows: int

    def fill(self, b: Builder, load: Node, begin: Node, name: str) -> Node:
        """Memory with the rows of a load from row `begin` on: one copy, which the printer turns."""
        memory, index = load.args[0], _index(load)
        along, extent = _column(index), tile_extent(load)
        index[along] = constant(0, I64)
        index[-1] = begin
        between = (1,) * (len(index) - along - 2)
        shape = TensorType(load.dtype, (extent, *between, self.rows), "tile")
        block = b.load(memory, *index, type=shape)
        if between:
            block = b.reshape(block, type=shape.with_shape((extent, self.rows)))
        own = TensorType(load.dtype, (self.rows, extent), "local")
        corner = constant(0, I64)
        return b.store(
            b.alloc(name=name, type=own), b.transpose(block, perm=(1, 0)), corner, corner
        )

    def row(self, b: Builder, load: Node, memory: Node, number: Node) -> Node:
        """A row of what `fill` gives."""
        return b.load(memory, number, constant(0, I64), type=load.tensor)


def turned(program: Block, cpu: Cpu) -> Turned | None:
    """What lies across in a program of the innermost grid loop; None where nothing does."""
    row = program.params[0]
    nodes = reachable(program.results)
    inside = {p for n in nodes for b in n.blocks for p in b.params}
    loads = [n for n in nodes if _lies_across(n, row) and inside.isdisjoint(n.vars)]
    if not loads:
        return None
    rows = min(cpu.vector_bytes // n.dtype.bytes for n in loads)
    room = sum(rows * tile_extent(n) * n.dtype.bytes for n in loads)
    fits = room <= CACHE_SHARE * cpu.cache_bytes and 1 < rows <= row.attrs["extent"]
    return Turned(tuple(loads), rows) if fits else None


def _lies_across(node: Node, row: Node) -> bool:
    """Whether a load takes a column of memory, and the next row the next column."""
    if not is_load(node) or not is_value(node) or not is_input(node.args[0]):
        return False
    index, mask = _index(node), access_parts(node)[1]
    if mask is not None or index[-1] is not row or node.dtype.kind == "b":
        return False
    moved = [i for i in index if is_tile(i)]
    others = [i for i in index[:-1] if not is_tile(i)]
    is_column = len(moved) == 1 and is_positions(moved[0])
    return is_column and all(row not in i.vars for i in others)


def _index(load: Node) -> list[Node]:
    """Where a load reads; what is the same for all lanes is a scalar."""
    return [i.args[0] if repeats(i) else i for i in access_parts(load)[0]]


def _column(index: Sequence[Node]) -> int:
    """The axis of memory along which lanes are."""
    return next(n for n, i in enumerate(index) if is_tile(i))
