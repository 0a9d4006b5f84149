"""rewrite: replace arithmetic by cheaper arithmetic with almost the same result.

    div(%x, 20.0)                     rewrite reciprocals     mul(%x, 0.05)
    max over r of mul(%x, 0.125)      rewrite scale           mul(max over r of %x, 0.125)
    exp(sub(mul(%x, 0.125), %m))      rewrite exp2            exp2(sub(mul(%x, %c), %m_L))
    cast(sub(%key, %row)) : f32<..>   rewrite positions       add(cast(%first), %steps)

- `reciprocals`: division by an f32 constant becomes multiplication by its reciprocal. The result
  may differ in the last place. Always legal.
- `inverses`: division of a tile by one number, or by the same row for all rows, becomes
  multiplication by the reciprocal: a division is not repeated. The result may differ in the last
  place. Always legal.
- `scale`: multiplication by a positive constant moves behind a maximum or minimum over a tile, and
  behind a mask with -inf: fewer elements are multiplied. The result is the same.
- `exp2`: exp(a - b) of tiles, with b the same along an axis, becomes exp2(a * L - b * L) with
  L = log2(e). b * L is computed once for the axis, and a constant factor of a is merged with L
  (FlashAttention-2, Dao, 2023). a * L is rounded relative to a, not to a - b: with a = b = 1e6 the
  result is off by up to 9 percent. If b exceeds 2^30, L is replaced by 1, so that nothing overflows
  and equal values still give 1. Use it if such errors are divided out, as softmax does, and inputs
  have 16 bits.
- `positions`: a conversion of a sum of positions along several axes of a tile to a float becomes
  the sum of two floats: that of the first element, and the steps from there, which are the same in
  all iterations. The result is the same: integers up to 2^24 are floats.
- `powers`: exp(a - m) becomes exp2((a - m) * log2(e)) if m is a maximum: a CPU computes exp2 in
  fewer instructions. The product is rounded, so that the error grows with m - a. The result is
  small then, and a sum of such results is at least 1.
- `first_positions`: an update of the position of the best value uses that positions grow; see
  `state_rules.py`. The result is the same.
- `iteration_counts`: a count of the elements that a mask shows is the number of the iteration, and
  is at least 1 after it; see `state_rules.py`. The result is the same.
- `mean_shifts`: the shift of a mean by one element is the distance of the element from the new
  mean, over the count; see `state_rules.py`. The last places may differ.
- `addends_first`: a carried sum to which an iteration adds two values gets their sum instead: what
  is small beside the carried sum would be rounded away. (Chan, Golub and LeVeque, 1983, describe
  such errors of a variance.)
- `unrounded`: an f32 value that is rounded to 16 bits and converted back is used as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stack.ir.builder import constant, converted, make, remade
from stack.ir.node import Node, topological
from stack.ir.traits import (
    choice,
    converts,
    divides,
    is_loop,
    is_number,
    is_positions,
    is_reduction,
    multiplies,
    number,
    repeated,
    repeats,
    signs,
)
from stack.ir.types import F32
from stack.passes.steps.affine import AffineIndex, place_of
from stack.passes.steps.bounds import extreme
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import is_constant
from stack.passes.steps.online import in_order
from stack.passes.steps.state_rules import first_positions, iteration_counts, mean_shifts
from stack.passes.steps.step import Step
from stack.passes.steps.tiles import positions, spread_along
from stack.passes.tiling.frame import LOG2E, static
from stack.target import Target

EXACT = 1 << 24  # integers up to here are numbers of f32
COARSE = 2.0**30  # above it, rounding a * log2(e) is off by many powers of two


@dataclass(frozen=True)
class Rewrite(Step, name="rewrite"):
    """Apply a rewrite rule to all values of a kernel.

    Attributes:
        rule: `reciprocals`, `inverses`, `scale`, `exp2`, `positions`, `powers`, `first_positions`,
            `iteration_counts`, `mean_shifts`, `addends_first` or `unrounded`.
    """

    rule: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.rule not in RULES:
            yield f"there is no rule {self.rule!r}; there are: {', '.join(RULES)}"

    def apply(self, kernel: Node) -> Node:
        return Edit(kernel).everywhere(lambda _, made: RULES[self.rule](made))


def _reciprocal(node: Node) -> Node | None:
    if not divides(node) or not is_number(node.args[1]) or node.args[1].dtype.name != "f32":
        return None
    divisor = number(node.args[1])
    if not 1e-30 < abs(divisor) < 1e30:
        return None
    return make("mul", (node.args[0], constant(1.0 / divisor, node.args[1].dtype)))


def _inverse(node: Node) -> Node | None:
    """Rewrites a division by a value that repeats in a tile as a multiplication."""
    if not divides(node) or not node.dtype.is_float or not node.tensor.rank:
        return None
    left, right = node.args
    source = repeated(right)
    if is_number(source) or not left.tensor.rank or static(source.tensor.size) == node.tensor.size:
        return None
    inverse = make("div", (constant(1.0, source.dtype), source))
    if source.tensor.rank:
        inverse = make(right.op, (inverse,), right.attrs, hint=right.type)
    return make("mul", (left, inverse))


def _scaled(node: Node) -> Node | None:
    """Rewrites a maximum or minimum of a scaled tile, or a mask with -inf over one, so that the
    scaling comes after it; None for other nodes.
    """
    if is_reduction(node) and node.attrs["kind"] in ("max", "min"):
        if not node.dtype.is_float:
            return None  # products of integers wrap around
        found = _factor(node.args[0])
        if found is None or not found[0].tensor.rank:
            return None
        made = make(node.op, (found[0],), node.attrs)
        return make("mul", (made, constant(found[1], made.dtype)))
    if choice(node) is None or not node.tensor.rank or not node.dtype.is_float:
        return None
    for side in (1, 2):
        found = _factor(node.args[3 - side])
        if found is not None and found[0].tensor.rank and is_constant(node.args[side], -math.inf):
            sides = (node.args[1], found[0]) if side == 1 else (found[0], node.args[2])
            made = make("select", (node.args[0], *sides))
            return make("mul", (made, constant(found[1], made.dtype)))
    return None


def _factor(node: Node) -> tuple[Node, float] | None:
    """Returns x and c if a tile is x * c with a positive constant c; else None."""
    if multiplies(node):
        for factor, other in (node.args, node.args[::-1]):
            if is_number(factor) and 0 < number(factor) < 1e30:
                return other, float(number(factor))
    return None


def _power(node: Node) -> Node | None:
    """Rewrites exp(a - b) by exp2, if b is the same along an axis; None for other nodes."""
    if node.op != "exp" or node.dtype.name != "f32" or signs(node.args[0]) != (1, -1):
        return None
    left, right = node.args[0].args
    is_scalar = not right.tensor.rank and bool(left.tensor.rank)
    if not (repeats(right) or is_scalar):
        return None
    row = right if is_scalar else right.args[0]
    base, scale = _factor(left) or (left, 1.0)
    is_fine = make("lt", (make("abs", (row,)), constant(COARSE, row.dtype)))
    factor = make("select", (is_fine, constant(LOG2E, row.dtype), constant(1.0, row.dtype)))
    by = factor if scale == 1 else make("mul", (factor, constant(scale, row.dtype)))
    first, second = by, make("mul", (row, factor))
    if not is_scalar:
        first, second = (
            make(right.op, (value,), right.attrs, hint=right.type) for value in (first, second)
        )
    return make("exp2", (make("sub", (make("mul", (base, first)), second)),))


def _positions(node: Node) -> Node | None:
    """Rewrites the conversion of positions in a tile to floats as the float of the first element
    plus constant steps; None for other nodes.
    """
    if not converts(node) or node.dtype.name not in ("f32", "f64") or node.tensor.rank < 2:
        return None
    place = place_of(node.args[0], casts=True) if node.args[0].dtype.kind == "i" else None
    ends = place.ends() if place is not None else None
    if place is None or ends is None or max(map(abs, ends)) > EXACT:
        return None
    own = [term for term in place.terms if is_positions(term)]
    outer = {t: c for t, c in place.terms.items() if t not in own}
    if len(own) < 2 or not outer or any(t.tensor.rank for t in outer):
        return None
    shape = tuple(map(static, node.shape))
    steps: Node | None = None
    for term in own:
        axis = int(term.attrs["axis"])
        one = positions(term.dtype, shape[axis])
        one = make("mul", (one, constant(place.terms[term], one.dtype)))
        one = spread_along(converted(one, node.dtype), (axis,), shape)
        steps = one if steps is None else make("add", (steps, one))
    first = extreme(AffineIndex(outer, place.more), 1, next(iter(outer)).dtype)
    assert steps is not None
    return make("add", (spread_along(converted(first, node.dtype), (), shape), steps))


def _relative_power(node: Node) -> Node | None:
    if node.op != "exp" or node.dtype != F32 or node.args[0].op != "sub":
        return None
    (relative,) = node.args
    behind = topological([relative.args[1]])
    found = {n.op for n in behind} | {r.op for n in behind for b in n.blocks for r in b.results}
    if "max" not in found:
        return None
    scaled = make("mul", (relative, constant(LOG2E, F32)))
    return make("exp2", (scaled,))


def _addends_first(loop: Node) -> Node | None:
    """Rewrites add(add(held, a), b) as add(held, add(a, b)) for the values `held` that a serial
    loop carries; None for other nodes.
    """
    if not is_loop(loop, "serial"):
        return None
    block = loop.blocks[0]
    found: dict[Node, Node] = {}
    for held, result in zip(block.params[1:], block.results, strict=True):
        is_masked = choice(result) is not None and result.args[2] is held
        new = result.args[1] if is_masked else result
        if signs(new) != (1, 1) or signs(new.args[0]) != (1, 1):
            continue
        (kept, first), second = new.args[0].args, new.args[1]
        if kept is held and held not in first.vars | second.vars:
            made = make(new.op, (held, make(new.op, (first, second))))
            found[result] = remade([result], {new: made})[result]
    return in_order(loop, found) if found else None


def _unrounded(node: Node) -> Node | None:
    if not (converts(node) and converts(node.args[0])):
        return None
    short, value = node.args[0], node.args[0].args[0]
    is_rounded = short.dtype.is_float and short.dtype.bits == 16 and node.dtype == value.dtype
    return value if is_rounded and value.dtype == F32 else None


RULES: dict[str, Callable[[Node], Node | None]] = {
    "reciprocals": _reciprocal,
    "inverses": _inverse,
    "scale": _scaled,
    "exp2": _power,
    "positions": _positions,
    "powers": _relative_power,
    "first_positions": first_positions,
    "iteration_counts": iteration_counts,
    "mean_shifts": mean_shifts,
    "addends_first": _addends_first,
    "unrounded": _unrounded,
}
