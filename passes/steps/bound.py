"""bound: run only the iterations of an online loop in which a mask of positions shows something.

    loop(%m0, %l0) {online=true}            bound r.0     %end = add(%j.0, 1)
      {(%r.0 < 16, %m, %l)                                loop(0, %end, %m0, %l0) {limited=true}
      %test = gt(%key, %row)                                {(%r.0 < 16, %m, %l) ...
      %x = select(%test, -inf, %score)
      ...                                   bound r.0 cut
                                                          %some = loop(0, %j.0, %m0, %l0)
    keys and rows in blocks of 64:                          { ... %x = %score ... }
    row block j.0 sees keys up to j.0                     loop(%j.0, %end, %some) {... select ...}

With `cut`, the iterations in which the mask hides nothing get a loop of their own, without it: up
to three loops. Legal for an online loop, if a comparison of positions hides elements from all its
states (`online_masks.py`), and is affine in the loop variable (`bounds.py`). Elements are those
of tiles, and of the iterations of loops inside, as a CPU computes them.

Source: index-set splitting (Wolfe, High Performance Compilers, 1996); causal block skipping in
FlashAttention-2 (Dao, 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from stack.ir.builder import constant, filled, make, results_of
from stack.ir.equivalence import once_in
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_number, number
from stack.passes.steps.affine import AffineIndex
from stack.passes.steps.bounds import Bound, Bounds, bounds_in, extreme
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import extent_of, is_constant, is_serial, loops_along, why_no_axis
from stack.passes.steps.online import is_associative
from stack.passes.steps.online_masks import HidingMask, masks_of
from stack.passes.steps.step import LoopStep
from stack.target import Target

CUT = "cut"


@dataclass(frozen=True)
class BoundLoops(LoopStep, name="bound"):
    """Limit the online loops over an axis to the iterations that masks leave.

    Attributes:
        where: `cut` to separate the iterations in which no element is hidden.
    """

    where: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_axis(kernel, self.axis)
        if self.where not in ("", CUT):
            yield f"axis {self.axis}: `{CUT}` or nothing, not {self.where!r}"
        found = self._bounds(kernel)
        if not found:
            yield f"no loop over {self.axis} is online or carries totals, and has no limits yet"
        if not any(bounds.found for bounds in found.values()):
            yield f"no comparison of positions hides blocks of {self.axis}"
        if self.where == CUT and not any(bounds.exact for bounds in found.values()):
            yield f"axis {self.axis}: more than a comparison of positions hides elements"

    def parts(self, kernel: Node) -> int:
        """Returns into how many loops `cut` splits a loop of the kernel, at most; 1 if it would
        only separate a partial block at the end.
        """
        sides = [
            {b.step > 0 for b in bounds.found if not b.is_tail(extent_of(loop))}
            for loop, bounds in self._bounds(kernel).items()
        ]
        return max((1 + len(side) for side in sides), default=1)

    def _bounds(self, kernel: Node) -> dict[Node, Bounds]:
        """Returns the bounds of masks on each loop over the axis that masks may shorten."""
        loops = (loop for loop, _ in loops_along(kernel, self.axis) if _is_free(loop))
        return {loop: _limits(loop.blocks[0]).bounds for loop in loops}

    def change(self, edit: Edit, loop: Node) -> Node | list[Node]:
        block = loop.blocks[0]
        if not (_is_free(loop) and _limits(block).bounds.found):
            return loop
        limits = _limits(block)
        is_cut = self.where == CUT and limits.bounds.exact
        starts: Sequence[Node] = starts_of(loop)
        for first, end, known in limits.ranges(block.params[0], extent_of(loop), is_cut):
            body = edit.body(block, known) if known else block
            attrs = {**loop.attrs, "limited": True}
            made = make("loop", [first, end, *starts], attrs, (body,))
            starts = results_of(made)
        return list(starts)


@dataclass(frozen=True)
class Limits:
    """The limits that masks set to the iterations of a loop.

    Attributes:
        bounds: the bounds of all masks with a comparison of positions.
        masks: these masks.
    """

    bounds: Bounds
    masks: Sequence[HidingMask]

    def ranges(
        self, var: Node, count: int, is_cut: bool
    ) -> list[tuple[Node, Node, Mapping[Node, Node]]]:
        """Returns the ranges of iterations into which masks divide a loop (first iteration, end),
        each with the selections that have a known value in it.
        """
        lower = [b for b in self.bounds.found if b.step > 0]
        upper = [b for b in self.bounds.found if b.step < 0]
        zero, whole = constant(0, var.dtype), constant(count, var.dtype)

        def edge(op: str, bounds: Sequence[Bound], some: bool, none: Node) -> Node:
            found = [_iteration(b, count, var, some) for b in bounds]
            return reduce(partial(_pick, op), found) if found else none

        first, end = edge("max", lower, True, zero), edge("min", upper, True, whole)
        if not is_cut:
            return [(first, end, {})]
        inner, outer = first, end
        if lower:
            inner = _pick("max", _pick("min", edge("max", lower, False, zero), end), first)
        if upper:
            outer = _pick("max", _pick("min", edge("min", upper, False, whole), end), inner)
        known = {mask.select: mask.select.args[mask.shown] for mask in self.masks}
        known |= {
            mask.test: filled(constant(mask.shown == 1, mask.test.dtype), mask.test)
            for mask in self.masks
        }
        found: list[tuple[Node, Node, Mapping[Node, Node]]] = [(inner, outer, known)]
        if lower:
            found.insert(0, (first, inner, {}))
        if upper:
            found.append((outer, end, {}))
        return found


def _is_free(loop: Node) -> bool:
    """True if masks may shorten a loop: it is serial, runs over its whole extent, and the
    contributions of its iterations can be combined in any grouping.
    """
    return is_associative(loop) and is_serial(loop)


@once_in
def _limits(block: Block) -> Limits:
    """Returns the limits that masks of positions in the body of an online loop set to its
    iterations.

    A partial block at the end is left to its mask, unless another mask hides blocks at the end.
    """
    var = block.params[0]
    found = [(mask, bounds_in(block, mask)) for mask in masks_of(block)]
    found = [(mask, own) for mask, own in found if own.found]
    count = int(var.attrs["extent"])
    sides = {b.step > 0 for _, own in found for b in own.found if not b.is_tail(count)}
    if sides:
        found = [
            (mask, own)
            for mask, own in found
            if any(not b.is_tail(count) or (b.step > 0) in sides for b in own.found)
        ]
    bounds = tuple(b for _, own in found for b in own.found)
    return Limits(Bounds(bounds, all(own.exact for _, own in found)), [mask for mask, _ in found])


def _iteration(bound: Bound, count: int, var: Node, some: bool) -> Node:
    """Builds the number of the first iteration that satisfies a bound, or of the one after the
    last, clipped to 0 to `count`.

    Args:
        bound: the bound.
        count: the iterations of the loop.
        var: its variable.
        some: whether some element of a tile is enough to be visible, or all have to be.
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
