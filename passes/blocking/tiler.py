"""The programs of a kernel of blocks, and the loops that store its results."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.axes import Index
from stack.ir.dim import Expr, substitute, symbols
from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.passes.blocking.dots import BlockDots
from stack.passes.blocking.frame import NamedTile
from stack.passes.blocking.kernel import Stored
from stack.passes.tiling.frame import CannotTile, power_of_two
from stack.target import Target, as_gpu

STEP = 2048  # elements of a long row in one step


class BlockTiler(BlockDots):
    """Builds kernels that store results at their places."""

    def __init__(self, group: Node, target: Target | None = None) -> None:
        super().__init__(group)
        self.gpu = as_gpu(target)
        self.rows = 0  # of a tile
        self.warps = 4
        self.stages = 2
        self.streams_out = not any(map(is_contraction, self.body.nodes))

    def check(self) -> None:
        super().check()
        for block in self.group.blocks:
            if any(n.op == "pow" and not n.dtype.is_float for n in block.nodes):
                raise CannotTile("it raises integers to powers")

    def finish(self, results: Stored, long: tuple[Expr, int] | None) -> Node:
        """The kernel that stores the results at their places.

        `long` is a symbol for an axis that is walked in steps where a result has it.
        """

        def program(memories: Sequence[Node]) -> list[Node]:
            return self._stores(results, memories, long)

        final = self.in_grid(self.grid, self.outputs, program)
        return self.built(final, warps=self.warps, stages=self.stages)

    def _stores(
        self,
        results: Sequence[tuple[Node, Index]],
        memories: Sequence[Node],
        long: tuple[Expr, int] | None,
    ) -> list[Node]:
        """Write the results; those that have the long axis are made in one walk along it."""
        name = str(long[0]) if long is not None else ""
        in_loop = [
            i
            for i, (_, place) in enumerate(results)
            if any(s.name == name for d in place for s in symbols(d))
        ]
        final = [
            m if i in in_loop else self.store(m, self.value(result, place), place)
            for i, ((result, place), m) in enumerate(zip(results, memories, strict=True))
        ]
        if long is None or not in_loop:
            return final
        extent = long[1]
        others = [substitute(d, {name: 0}) for i in in_loop for d in results[i][1]]
        step = self.reduction_loop.block if self.reduction_loop.is_first else STEP
        block = min(power_of_two(extent), max(1, step // self.held_along(others)))

        def body(var: Node, carried: list[NamedTile]) -> list[NamedTile]:
            step = self.axis("w", extent, block, self.begin(var, block))
            made: list[NamedTile] = []
            for i, memory in zip(in_loop, carried, strict=True):
                result, place = results[i]
                at = tuple(substitute(d, {name: step.place}) for d in place)
                made.append(NamedTile(self.store(memory.node, self.value(result, at), at)))
            return made

        start = [NamedTile(memories[i]) for i in in_loop]
        hints = [f"{m.node.attrs.get('name', 'o')}_w" for m in start]
        stored = self.second_loop(-(-extent // block), start, body, hints)
        for i, held in zip(in_loop, stored, strict=True):
            final[i] = held.node
        return final


__all__ = ["BlockTiler"]
