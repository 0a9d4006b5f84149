"""Kernels of results whose rows are shorter than a vector, of values that lie across.

An image of three channels that gets them last: a program that made one row would take an element of
each plane. Lanes are many rows instead, so that planes are read as they lie, and elements of a row
follow one after another in a loop; `cpu_loops.turned_stores` makes one copy of what they store.
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.errors import RuleError
from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.dim import Dim, symbols
from stack.ir.node import Node
from stack.ir.traits import is_reduction
from stack.passes.exact_tiling.tiler import Blocks, Tiler
from stack.passes.tiling.frame import static
from stack.target import Cpu

ROWS = Blocks(512, 512, 256, 64)  # of a program
APART = 4  # rows of which a vector has more are taken apart


class ShortRowsTiler(Tiler):
    """Lanes go along the axis before the last one."""

    def _axes(self, root: Node, iter_vars: Index, index_maps: Mapping[Node, Index]) -> Index:
        *outer, rows, row = map(static, root.shape)
        index: list[Dim] = [
            self.program_axis("ijklmnopq"[axis % 9], extent, 1, self.grid).place
            if extent > 1
            else 0
            for axis, extent in enumerate(outer)
        ]
        return (*index, self.lane_axis(rows, False, ROWS).place, self.loop_axis("c", row).place)

    def fits(self, cpu: Cpu) -> bool:
        """Whether rows of all results are short, and most of what they are made of lies across, or
        they are so short that taking what they are made of apart is less than what stays idle."""
        if any(map(is_reduction, self.body.nodes)):
            return False
        root, iter_vars, places = self._root()
        if any(places[r] != iter_vars or r.dtype.kind == "b" for r in self.body.results):
            return False
        rows, row = map(static, ((1, 1, *root.shape)[-2:]))
        if not 1 < row < cpu.lanes <= rows:
            return False
        size = row * max(r.dtype.bytes for r in self.body.results)
        return size * APART < cpu.vector_bytes or self._lies_across(iter_vars)

    def _lies_across(self, iter_vars: Index) -> bool:
        """Whether most of what is read differs along a row, and lies together along the other axis
        of a block."""
        rows, row = (str(v) for v in iter_vars[-2:])
        across = along = 0
        try:
            reads = self._reads(iter_vars)
        except RuleError:
            return False
        for param, place in reads:
            moved = [{s.name for s in symbols(d)} for d in place]
            if any(row in names for names in moved):
                size = static(param.tensor.bytes)
                across, along = (
                    (across + size, along) if moved[-1] == {rows} else (across, along + size)
                )
        return across > along

    def _reads(self, index: Index) -> list[tuple[Node, Index]]:
        """Where parameters are read by one element of each result."""
        found: dict[tuple[Node, Index], None] = {}
        pending = [(r, index) for r in self.body.results]
        while pending:
            key = pending.pop()
            if key in found:
                continue
            found[key] = None
            if key[0].args:
                pending += zip(key[0].args, ops.pull(*key), strict=True)
        return [key for key in found if key[0] in self.body.params]
