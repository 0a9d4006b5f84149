"""Running sums and products along an axis, for GPUs: a tile is scanned at once, tiles in turn.

A program has some lines along the axis. Where a line is longer than a tile, it walks along it and
carries what the elements so far come to. A few very long lines would leave most of a GPU idle; a
library scans those in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.axes import Index
from stack.ir.dim import Dim, Expr
from stack.ir.node import Node
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.tiler import BlockTiler
from stack.passes.tiling.frame import COMBINE, CannotTile, power_of_two, static, wide
from stack.target import Gpu

TILE = 4096  # elements that are scanned at once
ITERATIONS = 16  # tiles that few lines may take, one after another
KINDS = ("sum", "prod")


def leaves_idle(node: Node, gpu: Gpu) -> bool:
    """Whether the lines of a scan are so few and long that a program for each is slow."""
    along = int(node.attrs["axis"])
    sizes = [s for s in node.shape if isinstance(s, int)]
    if len(sizes) < len(node.shape):
        return False
    lines = prod(s for a, s in enumerate(sizes) if a != along)
    return sizes[along] > ITERATIONS * TILE and lines < gpu.processors


class ScanTiler(BlockTiler):
    """Builds the kernel of a group that is one scan."""

    def kernel(self) -> Node:
        """The kernel node of the group. Raises CannotTile."""
        (node,) = self.body.results
        self.kind, self.along = str(node.attrs["kind"]), int(node.attrs["axis"])
        if self.kind not in KINDS or node.dtype.bits < 16 or node.dtype.kind not in "fiu":
            raise CannotTile(f"no tile is scanned for the {self.kind} of {node.dtype}")
        shape = [static(s) for s in node.shape]
        self.block = min(TILE, max(2, power_of_two(shape[self.along])))
        self.iterations = -(-shape[self.along] // self.block)
        lines = prod(s for a, s in enumerate(shape) if a != self.along)
        room = TILE // self.block
        while room > 1 and lines // room < self.gpu.processors:
            room //= 2
        if leaves_idle(node, self.gpu):
            raise CannotTile(f"{lines} lines of {shape[self.along]} leave most programs idle")
        blocks = [1] * len(shape)
        for axis in reversed(range(len(shape))):
            if axis != self.along:
                blocks[axis] = min(power_of_two(shape[axis]), room)
                room //= blocks[axis]
        index: list[Dim] = []
        for axis, extent in enumerate(shape):
            if axis == self.along:
                index.append(0)
                continue
            made = self.program_axis("ijklmnopq"[axis % 9], extent, blocks[axis], self.grid)
            index.append(made.place if extent > 1 else 0)
        held = self.block * prod(blocks)
        self.warps = min(16, max(1, power_of_two(held // 512)))

        return self.finish([(node, tuple(index))], None)

    def _stores(
        self,
        results: Sequence[tuple[Node, Index]],
        memories: Sequence[Node],
        long: tuple[Expr, int] | None,
    ) -> list[Node]:
        ((node, index),) = results
        return [self._scanned(node, memories[0], list(index), static(node.shape[self.along]))]

    def _scanned(self, node: Node, memory: Node, index: list[Dim], extent: int) -> Node:
        """The walk along the axis; it carries the memory, and what all before a tile come to."""
        if self.iterations == 1:
            line = self.axis("s", extent, self.block)
            return self._step(node, memory, index, line, None)[0]
        start = self.identity(self.kind, wide(node.dtype))
        names = self.sorted({n: None for d in index for n in self.tile_axes(d)})
        before = NamedTile(self.spread(start, names), tuple(names))

        def body(var: Node, carried: list[NamedTile]) -> list[NamedTile]:
            last = self.int(self.iterations - 1).node
            iteration = self.b.sub(last, var) if node.attrs["reverse"] else var
            line = self.axis("s", extent, self.block, self.b.mul(iteration, self.block))
            stored, total = self._step(node, carried[0].node, index, line, carried[1])
            return [NamedTile(stored), total]

        return self.steps(
            self.iterations, [NamedTile(memory), before], body, names=["o_w", "before"]
        )[0].node

    def _step(
        self, node: Node, memory: Node, index: list[Dim], line: Axis, before: NamedTile | None
    ) -> tuple[Node, NamedTile]:
        """Scan and store one tile; the memory, and the total with this tile."""
        self.memo.clear()
        at = list(index)
        at[self.along] = line.place
        place: Index = tuple(at)
        value = self.spread_over(self.value(node.args[0], place), [line])
        value = self.masked(value, self.kind, [line.name])
        axis = value.axes.index(line.name)
        made = NamedTile(self.b.op("scan", [value.node], {**node.attrs, "axis": axis}), value.axes)
        if before is None:
            return self.store(memory, made, place), made
        rest = tuple(n for n in value.axes if n != line.name)
        total = NamedTile(self.b.reduce(value.node, kind=self.kind, axes=(axis,)), rest)
        made = self.apply(COMBINE[self.kind], [before, made])
        return self.store(memory, made, place), self.apply(COMBINE[self.kind], [before, total])


__all__ = ["ScanTiler"]
