"""Memory of the next chunk, brought near while the tiles of this one are multiplied.

Reading a panel for the first time waits for memory; the tiles of rows that share the panel before
it leave the bus idle. So each of them fetches a slice of what comes next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir.builder import Builder
from stack.ir.node import Node
from stack.passes.cpu_loops.part import part
from stack.passes.tiling.frame import static


def slice_of(b: Builder, block: Node, turns: Sequence[Node]) -> Node:
    """What one turn fetches of a block in memory: a part of the outermost of its axes.

    `turns`: indices of the loops around, outermost first.
    """
    extents = [static(t.attrs["extent"]) for t in turns]
    axis = next((i for i, size in enumerate(block.shape) if size != 1), 0)
    extent = static(block.shape[axis])
    size = -(-extent // math.prod(extents))
    start = b.mul(_linear(b, turns, extents), size)
    if size * math.prod(extents) > extent:
        start = b.min(start, extent - size)
    return part(b, block, axis, start, size)


def _linear(b: Builder, turns: Sequence[Node], extents: Sequence[int]) -> Node:
    """The number of a turn among all."""
    first, *rest = turns
    number = first
    for turn, extent in zip(rest, extents[1:], strict=True):
        number = b.add(b.mul(number, extent), turn)
    return number
