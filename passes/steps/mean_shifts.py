"""Mean shifts: cheaper updates of a variance in a loop that adds one element in each iteration.

    %mean = div(%sum, max(%n, 1.0))                   before and after, with %n = cast(%r)
    %new = div(add(%sum, %x), add(%n, 1.0))
    %shift = sub(%mean, %new)                         %own = sub(%x, %new)
    ... = mul(%n, mul(%shift, %shift))                ... = div(mul(%own, %own), max(%n, 1.0))

If an iteration adds %x to %n elements, the mean moves by the distance of %x from the new mean, over
%n. The distance is needed anyway: its square is the other term of the update (Welford,
Technometrics, 1962). Half of the multiplications are left, and the difference of two means that are
nearly equal is gone with its rounding error.

Before the first iteration, %sum is 0: %own is x - x then, and both forms are 0.
"""

from __future__ import annotations

from collections.abc import Collection

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, filled, make, remade
from stack.ir.memory import starts_of
from stack.ir.node import Node, topological
from stack.ir.traits import converts, divides, is_loop, multiplies, repeated, signs
from stack.passes.steps.loops import is_constant
from stack.passes.steps.online import in_order, is_none


def mean_shifts(loop: Node) -> Node | None:
    """Rewrites the shifts of means in a serial loop; None if it has none."""
    if not is_loop(loop, "serial"):
        return None
    block = loop.blocks[0]
    axis, *held = block.params
    sums = {h for h, start in zip(held, starts_of(loop), strict=True) if is_none(start, "add")}
    found: dict[Node, Node] = {}
    for node in topological(block.results):
        if not multiplies(node) or not multiplies(node.args[1]):
            continue
        count = repeated(node.args[0])
        if not (converts(count) and count.args[0] is axis):
            continue
        owns = [_own(shift, count, sums) for shift in node.args[1].args]
        if owns[0] is not None and owns[1] is not None:
            least = make("max", (count, constant(1.0, count.dtype)))
            found[node] = make("div", (make("mul", (owns[0], owns[1])), filled(least, node)))
    if not found:
        return None
    made = remade(block.results, found)
    return in_order(loop, {r: made[r] for r in block.results if made[r] is not r})


def _own(shift: Node, count: Node, sums: Collection[Node]) -> Node | None:
    """Returns the distance of the element that an iteration adds from the new mean, if `shift` is
    the difference of the means before and after it; None for other nodes.
    """
    if signs(shift) != (1, -1) or not all(map(divides, shift.args)):
        return None
    (held, before), (new, after) = (mean.args for mean in shift.args)
    if held not in sums or signs(new) != (1, 1) or new.args[0] is not held:
        return None
    least, more = repeated(before), make("add", (count, constant(1.0, count.dtype)))
    is_least = KIND_OF.get(least.op) == "max" and is_constant(least.args[1], 1.0)
    if not (is_least and repeated(least.args[0]) is count and repeated(after) is more):
        return None
    return make("sub", (new.args[1], shift.args[1]))
