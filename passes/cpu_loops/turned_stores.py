"""Stores that lie across in memory: kept as lines, and turned in one copy at the end.

A program whose lanes are rows of its result, and a loop the elements of a row, stores one element
of each row in a turn. These lines stay in memory of the program's own, until the block of rows is
whole: the printer then makes it of as many lines in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import Builder, constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_input, is_loop, is_store, repeats
from stack.ir.types import I64, TensorType
from stack.passes.cpu_loops.chunk import is_tile, origin_of
from stack.passes.cpu_loops.turned import begin_of
from stack.passes.tiling.frame import static
from stack.passes.tiling.names import Names


@dataclass(frozen=True)
class TurnedStore:
    """A loop over the elements of rows that stores them.

    Attributes:
        loop: it.
        index: where the block of rows lies.
        value: what it stores in a turn.
    """

    loop: Node
    index: tuple[Node, ...]
    value: Node

    @property
    def type(self) -> TensorType:
        """Of the lines."""
        element = self.loop.blocks[0].params[0]
        shape = (static(element.attrs["extent"]), static(self.value.shape[0]))
        return TensorType(self.value.dtype, shape, "local")

    def lines(self, b: Builder, names: Names) -> Node:
        """The same loop, which stores whole lines into memory of its own."""
        element = self.loop.blocks[0].params[0]
        name = names.numbered("lines")
        memory = b.alloc(name=name, type=self.type)
        held = Node("var", (), {"name": names.own(f"{name}_held")}, memory.type)
        stored = b.store(held, self.value, element, constant(0, I64))
        block = Block((element, held), [stored])
        return Node("loop", [memory], self.loop.attrs, memory.type, [block])

    def store(self, b: Builder, lines: Node) -> Node:
        """Memory after the rows that these lines are."""
        corner = constant(0, I64)
        block = b.load(lines, corner, corner, type=TensorType(lines.dtype, lines.shape, "tile"))
        turned = b.transpose(block, perm=(1, 0))
        return b.store(origin_of(self.loop), turned, *self.index)


def turned_store(sink: Node) -> TurnedStore | None:
    """A result of a program as a store that is to be turned; None where it is none."""
    if not is_loop(sink) or len(sink.args) != 1 or not is_input(sink.args[0]):
        return None
    ((element, memory),) = (b.params for b in sink.blocks)
    (stored,) = sink.blocks[0].results
    if not is_store(stored) or stored.args[0] is not memory or not is_tile(stored.args[1]):
        return None
    index, mask, _ = access_parts(stored)
    if len(index) < 2:
        return None
    *outer, row, last = (i.args[0] if repeats(i) else i for i in index)
    begin = begin_of(row)
    is_whole = last is element and element.attrs["extent"] == memory.shape[-1]
    if mask is not None or begin is None or not is_whole or any(map(is_tile, outer)):
        return None
    if any(element in i.vars for i in (*outer, begin)) or memory in stored.args[1].vars:
        return None
    found = TurnedStore(sink, (*outer, begin, constant(0, I64)), stored.args[1])
    return found if static(found.type.bytes) <= LARGEST_LOCAL else None
