"""branch: apply a mask only in the iterations of a loop in which it may hide an element.

    %x = select(%test, -inf, %score)     branch r.0     %some = ge(...)     one test for a block
                                                        %x = loop(0, %some, %score)
                                                          {kind="branch"} {(%once < 1, %shown)
                                                            select(%test, -inf, %shown) }

Comparisons of positions, and conditions that are the same for a whole tile, say whether the mask
can hide an element of the tile. Most blocks of a long row are visible as a whole: they skip the
comparison of each element, and hold none of its positions in registers. Legal for an online loop
over tiles with such a mask: `online_masks.py`. A mask that reduces stays as it is. GPUs only.

Source: the two kinds of blocks, full and partial, in FlexAttention (Dong et al., 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.builder import constant, make
from stack.ir.node import Block, Node
from stack.passes.steps.bounds import bounds_in, can_hold, is_costly
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import loops_along, why_no_axis
from stack.passes.steps.online import is_associative
from stack.passes.steps.online_masks import HidingMask, masks_of
from stack.passes.steps.step import LoopStep
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Branch(LoopStep, name="branch", only=Gpu):
    """Apply the masks in the online loops over an axis in branches."""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_axis(kernel, self.axis)
        loops = [loop for loop, _ in loops_along(kernel, self.axis) if is_associative(loop)]
        if not loops:
            yield f"no loop over {self.axis} is online or carries totals"
        if not any(_masks(loop.blocks[0]) for loop in loops):
            yield f"no mask in a loop over {self.axis} can be tested for a whole tile"

    def change(self, edit: Edit, loop: Node) -> Node:
        block = loop.blocks[0]
        masks = _masks(block) if is_associative(loop) else {}
        if not masks:
            return loop
        known: dict[Node, Node] = {}
        for mask, some in masks.items():
            (done,) = edit.values([mask.select], known, block)
            own = HidingMask(done, mask.shown)
            known[mask.select] = edit.note(mask.select, _branched(edit, own, some, block))
        return loop.rebuilt(blocks=[edit.body(block, known)])


def _masks(block: Block) -> dict[HidingMask, Node]:
    """Returns the masks in a loop body that can be skipped by a branch, each with a scalar
    condition: whether it may hide an element of the tile.
    """
    found: dict[HidingMask, Node] = {}
    for mask in masks_of(block):
        is_inside = mask.select not in block.nodes
        if is_inside or mask.select.tensor.rank < 2 or is_costly(mask.test, block.nodes):
            continue
        own = bounds_in(block, mask)
        if own.exact and all(b.is_tail(int(block.params[0].attrs["extent"])) for b in own.found):
            continue  # the end of the axis: a comparison of one row of positions
        some = can_hold(mask.test, mask.shown == 2)
        if some is not None:
            found[mask] = some
    return found


def _branched(edit: Edit, mask: HidingMask, some: Node, block: Block) -> Node:
    """Builds the branch that applies a mask only if `some` is true."""
    var, select = block.params[0], mask.select
    once = Node("var", (), {"name": edit.names.own("once"), "extent": 1}, var.type)
    held = Node("var", (), {"name": edit.names.own("shown")}, select.type)
    # all of the mask depends on the inner variable, so it is computed in the branch: positions that
    # are loaded before the loop would take registers in every iteration
    own = (v for v in select.args[0].vars if v.type == var.type)
    inner = {v: make("add", (v, once)) for v in own}
    (moved,) = edit.values([select.args[0]], inner)
    sides = [held if side == mask.shown else select.args[side] for side in (1, 2)]
    made = make("select", (moved, *sides))
    zero = constant(0, var.dtype)
    limits = (zero, make("cast", (some,), hint=some.tensor.with_dtype(var.dtype)))
    body = Block((once, held), [edit.locate(select, made)])
    attrs = {"kind": "branch", "limited": True}
    return make("loop", [*limits, select.args[mask.shown]], attrs, (body,))
