"""Blocks that are clipped at the end of memory, and that only some programs access.

While a nest is vectorized axis by axis, a block may be clipped along one axis and still have a
condition of another one, which a later step vectorizes too. If a condition is left at the end, the
block gets a mask over its elements instead, because backends have no code for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import constant, make
from stack.ir.node import Block, Node
from stack.ir.traits import is_load, is_store
from stack.ir.types import TensorType
from stack.passes.steps.access import parts_of, spread_along
from stack.passes.steps.edit import Edit
from stack.passes.steps.intervals import stays_inside
from stack.passes.tiling.frame import static


def with_masks(kernel: Node) -> Node:
    """Rewrites the loads and stores of a kernel that are both clipped at the end of memory and
    masked by a condition: a mask over their elements replaces the clipping.
    """
    edit = Edit(kernel)

    def visit(old: Node, args: Sequence[Node], blocks: Sequence[Block]) -> Node:
        made = old.rebuilt(args, blocks=blocks)
        is_access = is_load(made) or is_store(made)
        return _masked(made) if is_access and "clip" in made.attrs else made

    return edit.everywhere(visit)


def _masked(node: Node) -> Node:
    """Returns a load or store with a mask over its elements instead of clipping, if it is clipped
    and also has a condition; others as they are.
    """
    index, mask, other, tile = parts_of(node)
    if mask is None:
        return node
    memory = node.args[0]
    lead = memory.tensor.rank - len(tile)
    test = spread_along(mask, (), tile)
    for axis, size in enumerate(tile):
        first, extent = index[lead + axis], static(memory.shape[lead + axis])
        if stays_inside(first, size, extent):
            continue
        steps = make("iota", (), {"axis": 0}, hint=TensorType(first.dtype, (size,), "tile"))
        end = constant(extent, first.dtype)
        inside = make("lt", (make("add", (first, steps)), end))
        test = make("and", (test, spread_along(inside, (axis,), tile)))
    attrs = {k: v for k, v in node.attrs.items() if k != "clip"}
    if is_store(node):
        return make("store", [*node.args[:2], *index, test], attrs)
    zero = constant(0, node.dtype) if other is None else other
    return make("load", [memory, *index, test, zero], attrs, hint=node.type)
