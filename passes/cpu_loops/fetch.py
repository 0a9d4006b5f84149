"""Prefetch: loads the next panel into the cache while the tiles of this one are multiplied.

The first read of a panel waits for memory. The bus is idle while tiles of rows use the panel before
it. So each of these tiles prefetches a slice of the next panel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir.builder import Builder
from stack.ir.node import Node
from stack.passes.cpu_loops.block_slices import part
from stack.passes.tiling.frame import static


def slice_of(b: Builder, block: Node, turns: Sequence[Node]) -> Node:
    """Returns the slice, along the outermost axis, of the next panel `block` that one iteration of
    the loops over row tiles prefetches. All iterations together prefetch the whole block.

    `turns`: index variables of the enclosing loops, outermost first.
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
    """Returns the node that numbers the current iteration among all iterations of nested loops, as
    a row-major index. `turns` are the loops' index variables and `extents` their extents, outermost
    first.
    """
    first, *rest = turns
    number = first
    for turn, extent in zip(rest, extents[1:], strict=True):
        number = b.add(b.mul(number, extent), turn)
    return number
