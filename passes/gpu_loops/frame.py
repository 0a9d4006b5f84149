"""The frame of a kernel for a GPU: one loop over blocks, loops over warps and lanes inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.traits import nest_of
from stack.ir.types import I64, DType, TensorType
from stack.ir.warp_ops import WARP
from stack.passes.tiling.loops import Rebuilt, extent_of, index, items

Body = Callable[[list[Node]], list[Node]]


class CannotDistribute(Exception):
    """A kernel that these passes have no schedule for; says why."""


class Threads(Rebuilt):
    """Loops over threads of one kernel that is being built.

    Attributes:
        old: the kernel's block at the tile level.
        nest: its grid loops, outermost first.
        program: the block inside of them: what one position of the grid does.
        warp: index of the warp in a block.
        lane: index of the lane in a warp.
        step: index of the block of threads.
    """

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.nest, self.program = nest_of(block, "grid")
        self.step = index("block", 1)
        self.warp = index("w", 1)
        self.lane = index("l", WARP)

    @property
    def rows(self) -> int:
        """Positions of the grid."""
        return math.prod(extent_of(loop) for loop in self.nest)

    def _own_outputs(self) -> list[Node]:
        return list(self.old.params[-len(self.old.results) :])

    def int(self, value: int) -> Node:
        """An index constant."""
        return constant(value, I64)

    # ---- loops

    def kernel(self, blocks: int, program: Callable[[Node, list[Node]], list[Node]]) -> Block:
        """The kernel's block: one grid loop around what a block of threads does."""
        outputs = self._own_outputs()
        step = self.step = index("block", blocks)
        held = [Node("var", (), {"name": f"{o.attrs['name']}_0"}, o.type) for o in outputs]
        block = Block((step, *held), program(step, held))
        loop = self.b.op("loop", outputs, {"kind": "grid"}, (block,))
        return self.b.block(self.old.params, items(self.b, loop))

    def over(self, kind: str, step: Node, memories: Sequence[Node], body: Body) -> list[Node]:
        """A loop that carries memories."""
        held = [Node("var", (), {"name": self.fresh("m")}, m.type) for m in memories]
        block = Block((step, *held), body(held))
        return items(self.b, self.b.op("loop", memories, {"kind": kind}, (block,)))

    def over_warps(self, warps: int, memories: Sequence[Node], body: Body) -> list[Node]:
        """One phase of the block; `body` may use `warp`."""
        self.warp = index(self.fresh("w"), warps)
        return self.over("warp", self.warp, memories, body)

    def over_lanes(self, memories: Sequence[Node], body: Body) -> list[Node]:
        """One step of a warp; `body` may use `lane`."""
        self.lane = index(self.fresh("l"), WARP)
        return self.over("lane", self.lane, memories, body)

    # ---- the old grid

    def grid_swap(self, row: Node, nest: Sequence[Node] | None = None) -> dict[Node, Node]:
        """The old grid's indices at a position, the innermost one moving first."""
        loops = self.nest if nest is None else nest
        swap: dict[Node, Node] = {}
        rest, size = row, math.prod(map(extent_of, loops))
        for loop in reversed(loops):
            old, extent = loop.blocks[0].params[0], extent_of(loop)
            swap[old] = rest if size == extent else self.b.rem(rest, extent)
            size //= max(extent, 1)
            if size > 1:
                rest = self.b.div(rest, extent)
            else:
                rest = self.int(0)
        return swap

    def memory(self, space: str, hint: str, dtype: DType, *shape: int) -> Node:
        """Memory of the block of threads, or registers."""
        return self.b.alloc(self.step, name=self.fresh(hint), type=TensorType(dtype, shape, space))

    def times(self, value: Node, factor: int) -> Node:
        """A multiple of an index."""
        return value if factor == 1 else self.b.mul(value, factor)
