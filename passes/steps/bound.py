"""Masks of positions in online loops: skip iterations that they hide, or apply them in some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from stack.ir.builder import constant, filled, make, results_of
from stack.ir.equivalence import once_in
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_number, number
from stack.passes.steps.affine import AffineIndex
from stack.passes.steps.bounds import Bound, Bounds, bounds_in, can_hold, extreme, is_costly
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    along,
    branch,
    is_constant,
    is_serial,
    loops_along,
    why_no_axis,
)
from stack.passes.steps.online import HidingMask, is_associative, masks_of
from stack.passes.steps.step import LoopStep
from stack.target import Gpu, Target

CUT = "cut"


@dataclass(frozen=True)
class BoundLoops(LoopStep, name="bound"):
    """Limit the online loops over an axis to the iterations that masks leave.

        loop(%m0, %l0) {online=true}          bound r.0     %end = add(%j.0, 1)
          {(%r.0 < 16, %m, %l)                              loop(0, %end, %m0, %l0) {limited=true}
          %test = gt(%key, %row)                              {(%r.0 < 16, %m, %l) ...
          %x = select(%test, -inf, %score)
          ...                                 bound r.0 cut
                                                            %some = loop(0, %j.0, %m0, %l0)
        keys and rows in blocks of 64:                        { ... %x = %score ... }
        row block j.0 sees keys up to j.0                   loop(%j.0, %end, %some) {... select ...}

    With `cut`, the iterations in which the mask hides nothing get a loop of their own, without it:
    up to three loops. Legal for an online loop, if a comparison of positions hides elements from
    all its states (`online.py`), and is affine in the loop variable (`bounds.py`). Elements
    are those of tiles, and of the iterations of loops inside, as a CPU computes them.

    Source: index-set splitting (Wolfe, High Performance Compilers, 1996); causal block skipping in
    FlashAttention-2 (Dao, 2023).

    Attributes:
        where: `cut` to separate the iterations in which no element is hidden.
    """

    where: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_axis(kernel, self.axis)
        if self.where not in ("", CUT):
            yield f"axis {self.axis}: `{CUT}` or nothing, not {self.where!r}"
        found = [_limits(body).values() for body in self._bodies(kernel)]
        if not found:
            yield f"no loop over {self.axis} is online or carries totals, and has no limits yet"
        if not any(found):
            yield f"no comparison of positions hides blocks of {self.axis}"
        if self.where == CUT and not any(all(own.exact for own in limits) for limits in found):
            yield f"axis {self.axis}: more than a comparison of positions hides elements"

    def parts(self, kernel: Node) -> int:
        """Returns into how many loops `cut` splits a loop of the kernel, at most; 1 if it would
        only separate a partial block at the end.
        """
        bodies = self._bodies(kernel)
        return max((1 + len(_sides(body, _limits(body).values())) for body in bodies), default=1)

    def _bodies(self, kernel: Node) -> list[Block]:
        """Returns the bodies of the loops over the axis that masks may shorten."""
        loops = (loop for loop, _ in loops_along(kernel, self.axis))
        return [loop.blocks[0] for loop in loops if _is_free(loop)]

    def change(self, edit: Edit, loop: Node) -> Node | list[Node]:
        block = loop.blocks[0]
        if not _is_free(loop) or not _limits(block):
            return loop
        limits = _limits(block)
        is_cut = self.where == CUT and all(own.exact for own in limits.values())
        starts: Sequence[Node] = starts_of(loop)
        for first, end, known in _ranges(block.params[0], limits, is_cut):
            body = edit.body(block, known) if known else block
            attrs = {**loop.attrs, "limited": True}
            made = make("loop", [first, end, *starts], attrs, (body,))
            starts = results_of(made)
        return list(starts)


def _is_free(loop: Node) -> bool:
    """True if masks may shorten a loop: it is serial, runs over its whole extent, and the
    contributions of its iterations can be combined in any grouping.
    """
    return is_associative(loop) and is_serial(loop)


@once_in
def _limits(block: Block) -> Mapping[HidingMask, Bounds]:
    """Returns the masks of positions in the body of an online loop, each with the bounds that it
    sets to the iterations.

    A partial block at the end is left to its mask, unless another mask hides blocks at the end.
    """
    found = {mask: bounds_in(block, mask) for mask in masks_of(block)}
    sides = _sides(block, found.values()) or {True, False}
    return {m: own for m, own in found.items() if any((b.step > 0) in sides for b in own.found)}


def _sides(block: Block, limits: Iterable[Bounds]) -> set[bool]:
    """Returns at which ends of a loop bounds hide whole blocks: True for the first iterations."""
    count = int(block.params[0].attrs["extent"])
    return {b.step > 0 for own in limits for b in own.found if not b.is_tail(count)}


def _ranges(
    var: Node, limits: Mapping[HidingMask, Bounds], is_cut: bool
) -> Iterator[tuple[Node, Node, Mapping[Node, Node]]]:
    """Yields the ranges of iterations into which masks divide a loop (first iteration, end), each
    with the selections that have a known value in it.
    """
    count = int(var.attrs["extent"])

    def edge(op: str, some: bool) -> Node | None:
        """Builds the first iteration ("max") or the end ("min") that all bounds leave."""
        is_lower = op == "max"
        own = (b for bounds in limits.values() for b in bounds.found if (b.step > 0) == is_lower)
        found = [_iteration(b, count, var, some) for b in own]
        return reduce(partial(_pick, op), found) if found else None

    lower, upper = edge("max", True), edge("min", True)
    first = lower or constant(0, var.dtype)
    end = upper or constant(count, var.dtype)
    if not is_cut:
        yield first, end, {}
        return
    inner, outer = edge("max", False), edge("min", False)
    inner = first if inner is None else _pick("max", _pick("min", inner, end), first)
    outer = end if outer is None else _pick("max", _pick("min", outer, end), inner)
    known = {mask.select: mask.select.args[mask.shown] for mask in limits}
    known |= {m.test: filled(constant(m.shown == 1, m.test.dtype), m.test) for m in limits}
    if lower is not None:
        yield first, inner, {}
    yield inner, outer, known
    if upper is not None:
        yield outer, end, {}


def _iteration(bound: Bound, count: int, var: Node, some: bool) -> Node:
    """Builds the number of the first iteration that satisfies a bound, or of the one after the
    last, clipped to 0 to `count`, the iterations of the loop. `some`: whether some element of a
    tile is enough to be visible, or all have to be.
    """
    step, is_lower = abs(bound.step), bound.step > 0
    # lower: ceil(-rest / step); upper: floor(rest / step) + 1
    moved = AffineIndex(more=step - is_lower).plus(bound.rest, -1 if is_lower else 1)
    found = extreme(moved, 1 if some != is_lower else -1, var.dtype, bound.inner)
    if is_number(found):
        return constant(min(max(int(number(found)), 0), count * step) // step, var.dtype)
    least = make("max", (found, constant(0, found.dtype)))
    inside = make("min", (least, constant(count * step, var.dtype)))
    return make("div", (inside, constant(step, var.dtype))) if step > 1 else inside


def _pick(op: str, a: Node, b: Node) -> Node:
    """Builds the maximum or minimum, as `op` says, of two iteration numbers from 0 on."""
    for one, other in ((a, b), (b, a)):
        if is_constant(one, 0):
            return other if op == "max" else one
    if is_number(a) and is_number(b):
        picked = max if op == "max" else min
        return constant(picked(int(number(a)), int(number(b))), a.dtype)
    return a if a is b else make(op, (a, b))


@dataclass(frozen=True)
class Branch(LoopStep, name="branch", only=Gpu):
    """Apply the masks in the online loops over an axis in branches.

        %x = select(%test, -inf, %score)     branch r.0     %some = ge(...)     one test for a block
                                                            %x = loop(0, %some, %score)
                                                              {kind="branch"} {(%once < 1, %shown)
                                                                select(%test, -inf, %shown) }

    Comparisons of positions, and conditions that are the same for a whole tile, say whether the
    mask can hide an element of the tile. Most blocks of a long row are visible as a whole: they
    skip the comparison of each element, and hold none of its positions in registers. Legal for an
    online loop over tiles with such a mask: `online.py`. A mask that reduces stays as it is.
    GPUs only.

    Source: the two kinds of blocks, full and partial, in FlexAttention (Dong et al., 2024).
    """

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
    once = along(edit.names.own("once"), 1, var)
    held = Node("var", (), {"name": edit.names.own("shown")}, select.type)
    # all of the mask depends on the inner variable, so it is computed in the branch: positions that
    # are loaded before the loop would take registers in every iteration
    own = (v for v in select.args[0].vars if v.type == var.type)
    inner = {v: make("add", (v, once)) for v in own}
    (moved,) = edit.values([select.args[0]], inner)
    sides = [held if side == mask.shown else select.args[side] for side in (1, 2)]
    made = make("select", (moved, *sides))
    body = Block((once, held), [edit.locate(select, made)])
    return branch(some, [select.args[mask.shown]], body)
