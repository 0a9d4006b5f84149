"""Bounds of integer values, used to omit clamps and masks without effect."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stack.frontends.jax.lax.lowering import Site
from stack.ir.bounds import COMBINED, Range, combine
from stack.ir.dim import Dim, Expr, bounds
from stack.ir.node import Node
from stack.ir.types import DType

_DEPTH = 24


def limits(dtype: DType) -> Range:
    """Returns the smallest and largest value of an integer type."""
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def value_range(node: Node) -> Range:
    """Returns bounds of all elements of an integer or bool array."""
    return _bounded(node, _DEPTH, {})


def _bounded(node: Node, depth: int, seen: dict[Node, Range]) -> Range:
    if node in seen:
        return seen[node]
    low, high = (0, 1) if node.dtype.kind == "b" else limits(node.dtype)
    found = _range(node, depth - 1, seen) if depth else None
    if found is None or found[0] < low or found[1] > high:
        found = low, high
    seen[node] = found
    return found


def _range(node: Node, depth: int, seen: dict[Node, Range]) -> Range | None:
    if node.op == "const":
        array = node.attrs["value"].array
        return (int(array.min()), int(array.max())) if array.size else None
    if node.op == "iota":
        return 0, max(bounds(node.shape[node.attrs["axis"]])[1] - 1, 0)
    if node.op == "argreduce":
        return 0, max(bounds(node.args[0].shape[node.attrs["axis"]])[1] - 1, 0)
    if node.op in ("reshape", "transpose", "broadcast", "slice", "reverse", "gather"):
        return _bounded(node.args[0], depth, seen)
    if node.op == "cast":
        is_integer = node.args[0].dtype.kind in "iub"
        return _bounded(node.args[0], depth, seen) if is_integer else None
    if node.op in ("select", "concat"):
        choices = node.args
        if node.op == "select":
            taken = _bounded(node.args[0], depth, seen)
            choices = {(1, 1): node.args[1:2], (0, 0): node.args[2:]}.get(taken, node.args[1:])
        parts = [_bounded(a, depth, seen) for a in choices]
        return min(p[0] for p in parts), max(p[1] for p in parts)
    if node.op not in (*_COMBINE, *COMBINED) or any(a.dtype.kind not in "iub" for a in node.args):
        return None
    parts = [_bounded(a, depth, seen) for a in node.args]
    if node.op in _COMBINE:
        return _COMBINE[node.op](*parts)
    return combine(node.op, *parts)


def _less(x: Range, y: Range) -> Range:
    return int(x[1] < y[0]), int(x[0] < y[1])


def _equal(x: Range, y: Range) -> Range:
    return int(x[0] == x[1] == y[0] == y[1]), int(x[0] <= y[1] and y[0] <= x[1])


def _not(x: Range) -> Range:
    return 1 - x[1], 1 - x[0]


# beside the ops that `combine` knows
_COMBINE: dict[str, Callable[..., Range]] = {
    "lt": _less,
    "gt": lambda x, y: _less(y, x),
    "le": lambda x, y: _not(_less(y, x)),
    "ge": lambda x, y: _not(_less(x, y)),
    "eq": _equal,
    "ne": lambda x, y: _not(_equal(x, y)),
    "neg": lambda x: (-x[1], -x[0]),
}


def size_node(s: Site, size: Dim, dtype: DType) -> Node:
    """Returns a size as a scalar of an integer type."""
    return s.b.size_of(size, dtype)


def clamp(s: Site, x: Node, top: Dim) -> Node:
    """Clamps `x` to `0..top`; unchanged if its bounds are in that range."""
    low, high = value_range(x)
    least = bounds(top)[0] if isinstance(top, Expr) else top
    if low < 0:
        x = s.b.max(x, 0)
    if high > least:
        x = s.b.min(x, size_node(s, top, x.dtype))
    return x


def within(s: Site, x: Node, top: Dim) -> Node | None:
    """Returns the mask `0 <= x <= top`; None if it is true everywhere by the bounds."""
    low, high = value_range(x)
    least = bounds(top)[0] if isinstance(top, Expr) else top
    above = s.b.ge(x, 0) if low < 0 else None
    below = s.b.le(x, size_node(s, top, x.dtype)) if high > least else None
    if above is not None and below is not None:
        return s.b.and_(above, below)
    return above if above is not None else below
