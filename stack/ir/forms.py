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
