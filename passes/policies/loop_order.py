"""The interchanges that bring perfectly nested loops into an order."""

from __future__ import annotations

from collections.abc import Sequence

from stack.passes.steps.primitives import Reorder


def reordered(now: Sequence[str], wanted: Sequence[str], why: str) -> list[Reorder]:
    """Returns the loop interchanges that bring perfectly nested loops into another order.

    Args:
        now: the axes of the loops, outermost first.
        wanted: the same axes in the order that is wanted; axes that are left out become innermost.
        why: the reason of the policy.
    """
    made: list[Reorder] = []
    order = list(now)
    for place, axis in enumerate(wanted):
        for at in range(order.index(axis), place, -1):
            made.append(Reorder(order[at - 1], axis).because(why))
            order[at - 1], order[at] = axis, order[at - 1]
    return made
