"""What is known about integer values: bounds, so that clamps and masks that do nothing vanish."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stack.frontends.lax import Site
from stack.ir.dim import Dim, Expr, bounds
from stack.ir.node import Node
from stack.ir.types import DType

Range = tuple[int, int]
_DEPTH = 24


def limits(dtype: DType) -> Range:
    """Smallest and largest value of an integer type."""
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def value_range(node: Node, depth: int = _DEPTH) -> Range:
    """Bounds that every element of an integer array is certainly within."""
    if node.dtype.kind == "b":
        return 0, 1
    low, high = limits(node.dtype)
    if not depth:
        return low, high
    found = _range(node, depth - 1)
    if found is None or found[0] < low or found[1] > high:
        return low, high
    return found


def _range(node: Node, depth: int) -> Range | None:
    if node.op == "const":
        array = node.attrs["value"].array
        return (int(array.min()), int(array.max())) if array.size else None
    if node.op == "iota":
        return 0, max(bounds(node.shape[node.attrs["axis"]])[1] - 1, 0)
    if node.op == "argreduce":
        return 0, max(bounds(node.args[0].shape[node.attrs["axis"]])[1] - 1, 0)
    if node.op in ("reshape", "transpose", "broadcast", "slice", "reverse", "gather"):
        return value_range(node.args[0], depth)
    if node.op == "cast":
        is_integer = node.args[0].dtype.kind in "iub"
        return value_range(node.args[0], depth) if is_integer else None
    if node.op in ("select", "concat"):
        parts = [value_range(a, depth) for a in node.args[node.op == "select" :]]
        return min(p[0] for p in parts), max(p[1] for p in parts)
    if node.op in _COMBINE:
        return _COMBINE[node.op](*(value_range(a, depth) for a in node.args))
    return None


def _product(x: Range, y: Range) -> Range:
    corners = [a * b for a in x for b in y]
    return min(corners), max(corners)


def _remainder(x: Range, y: Range) -> Range | None:
    if y[0] <= 0:
        return None
    return (0 if x[0] >= 0 else max(x[0], 1 - y[1])), min(max(x[1], 0), y[1] - 1)


def _quotient(x: Range, y: Range) -> Range | None:
    return (x[0] // y[1], x[1] // y[0]) if x[0] >= 0 and y[0] > 0 else None


def _masked(x: Range, y: Range) -> Range | None:
    return (0, min(x[1], y[1])) if x[0] >= 0 and y[0] >= 0 else None


_COMBINE: dict[str, Callable[..., Range | None]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _product,
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "rem": _remainder,
    "div": _quotient,
    "and": _masked,
    "neg": lambda x: (-x[1], -x[0]),
}


def size_node(s: Site, size: Dim, dtype: DType) -> Node:
    """A size as a scalar of an integer type."""
    return s.b.size_of(size, dtype)


def clamp(s: Site, x: Node, top: Dim) -> Node:
    """`x` moved into `0..top`, with nothing done where it certainly is there."""
    low, high = value_range(x)
    least = bounds(top)[0] if isinstance(top, Expr) else top
    if low < 0:
        x = s.b.max(x, 0)
    if high > least:
        x = s.b.min(x, size_node(s, top, x.dtype))
    return x


def within(s: Site, x: Node, top: Dim) -> Node | None:
    """Where `0 <= x <= top`; None where that certainly holds everywhere."""
    low, high = value_range(x)
    least = bounds(top)[0] if isinstance(top, Expr) else top
    above = s.b.ge(x, 0) if low < 0 else None
    below = s.b.le(x, size_node(s, top, x.dtype)) if high > least else None
    if above is not None and below is not None:
        return s.b.and_(above, below)
    return above if above is not None else below
