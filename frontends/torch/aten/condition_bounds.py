"""Bounds of a value under a condition: `0 <= f & f < 56` bounds `cast(f)`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stack.ir.node import Node

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def bounds_where(condition: Node, value: Node) -> tuple[int, int] | None:
    """Returns inclusive bounds of an integer that a condition implies; None unless it has both."""
    source = value.args[0] if value.op == "cast" else value
    if source.dtype.kind not in "iuf":
        return None
    low: int | None = None
    high: int | None = None
    for how, number in _comparisons(condition, source):
        if how in ("ge", "gt"):
            # casts truncate, which preserves the order
            least = math.trunc(number) + (how == "gt" and source.dtype.is_integer)
            low = least if low is None else max(low, least)
        else:
            most = math.trunc(number)
            is_whole_step = number == most and (source.dtype.is_integer or number >= 1)
            most -= how == "lt" and is_whole_step
            high = most if high is None else min(high, most)
    return None if low is None or high is None else (low, high)


def _comparisons(condition: Node, source: Node) -> Iterator[tuple[str, float]]:
    """Yields the comparisons of a value with a number that a condition implies."""
    if condition.op == "and":
        for part in condition.args:
            yield from _comparisons(part, source)
    elif condition.op in _MIRRORED:
        left, right = condition.args
        for one, other, how in (
            (left, right, condition.op),
            (right, left, _MIRRORED[condition.op]),
        ):
            if one is source and other.op == "const" and not other.tensor.rank:
                number = float(other.attrs["value"].array)
                if math.isfinite(number):
                    yield how, number
