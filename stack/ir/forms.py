"""Casts, reshapes, broadcasts, slices and pads that are left out if they change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import constant, make
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.types import DType


def converted(x: Node, dtype: DType) -> Node:
    """Converts a value to an element type."""
    return x if x.dtype == dtype else make("cast", (x,), hint=x.tensor.with_dtype(dtype))


def reshaped(x: Node, shape: Sequence[Dim]) -> Node:
    """Reshapes a value."""
    if x.shape == tuple(shape):
        return x
    return make("reshape", (x,), hint=x.tensor.with_shape(tuple(shape)))


def filled(x: Node, like: Node) -> Node:
    """Repeats a number in all elements of an array with the shape of `like`."""
    if x.tensor.rank or not like.tensor.rank:
        return x
    return make("broadcast", (x,), {"axes": ()}, hint=like.tensor.with_dtype(x.dtype))


def spread_by_name(
    x: Node, names: Sequence[str], wanted: Sequence[str], shape: Sequence[Dim]
) -> Node:
    """Broadcasts a value to the axes `wanted` of an array with this shape, by the names of its own
    axes. Axes that the array does not have are dropped; they have one element.
    """
    kept = [n for n in names if n in wanted]
    x = reshaped(x, [size for n, size in zip(names, x.shape, strict=True) if n in wanted])
    order = sorted(range(len(kept)), key=lambda i: wanted.index(kept[i]))
    if order != list(range(len(kept))):
        x = make("transpose", (x,), {"perm": tuple(order)})
    if len(kept) == len(wanted):
        return x
    axes = tuple(wanted.index(kept[i]) for i in order)
    return make("broadcast", (x,), {"axes": axes}, hint=x.tensor.with_shape(tuple(shape)))


def sliced(x: Node, start: Sequence[Dim], limit: Sequence[Dim]) -> Node:
    """Slices a value: along each axis from `start` up to `limit`, without the latter."""
    start, limit = tuple(start), tuple(limit)
    if limit == x.shape and not any(start):
        return x
    return make("slice", (x,), {"start": start, "limit": limit, "step": (1,) * len(start)})


def padded(x: Node, low: Sequence[int], high: Sequence[int], fill: float = 0) -> Node:
    """Adds `low` elements `fill` before and `high` behind those of each axis of a value."""
    if not any((*low, *high)):
        return x
    attrs = {"low": tuple(low), "high": tuple(high), "interior": (0,) * x.tensor.rank}
    return make("pad", (x, constant(fill, x.dtype)), attrs)
