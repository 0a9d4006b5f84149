"""Reads and writes through strides in the flat storage of a dense value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stack.frontends.torch.aten.lowering import Context, NotLowered
from stack.ir.dim import Dim, add, equal, less_equal, mul, product
from stack.ir.node import Node
from stack.ir.types import I64


def read_strided(
    cx: Context, flat: Node, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim
) -> Node:
    """Reads the elements of a flat storage at offset + sum of index times stride.

    Raises NotLowered if elements are known to be past its end.
    """
    if not size:
        return cx.reshape(cx.slice(flat, 0, offset, add(offset, 1)), ())
    end = add(offset, product(list(size)))
    order = list(range(len(size)))
    steps = [s for s in stride if isinstance(s, int)]
    if len(steps) == len(stride):
        order.sort(key=lambda i: -steps[i])
    laid_out = [size[i] for i in order]
    if _is_dense(laid_out, [stride[i] for i in order]) and less_equal(end, flat.tensor.size):
        dense = cx.reshape(cx.slice(flat, 0, offset, end), laid_out)
        return cx.transpose(dense, sorted(range(len(size)), key=order.__getitem__))
    axes = " ".join(f"i{i}" for i in range(len(size)))
    place = _places(cx, flat.tensor.size, size, stride, offset)
    return cx.b.gather(flat, place, rule=f"n!, {axes} -> {axes}")


def _is_dense(size: Sequence[Dim], stride: Sequence[Dim]) -> bool:
    """True if elements are contiguous and row-major."""
    step: Dim = 1
    for extent, own in zip(reversed(size), reversed(stride), strict=True):
        if equal(extent, 1) is not True and equal(own, step) is not True:
            return False
        step = mul(step, extent)
    return True


def write_strided(
    cx: Context, flat: Node, source: Node, stride: Sequence[Dim], offset: Dim
) -> Node:
    """Writes a value over the elements of a flat storage that `read_strided` reads.

    If elements overlap, the last one in row-major order is kept.
    """
    kept = _last_of_each(source.shape, stride)
    if kept is not None:
        numbers, places = kept
        source = cx.b.gather(
            cx.reshape(source, (source.tensor.size,)), cx.b.const(numbers), rule="n!, i -> i"
        )
        index = cx.elementwise("add", cx.b.const(places), offset)
        return cx.b.scatter(flat, index, source, rule="n!, i, i -> n!", kind="set")
    place = _places(cx, flat.tensor.size, source.shape, stride, offset)
    axes = " ".join(f"i{i}" for i in range(source.tensor.rank))
    return cx.b.scatter(flat, place, source, rule=f"n!, {axes}, {axes} -> n!", kind="set")


def _last_of_each(
    size: Sequence[Dim], stride: Sequence[Dim]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns row-major numbers and storage offsets of the elements that a write keeps.

    Of elements with the same offset the last one is kept; None if no elements overlap. Needed since
    a scatter may store overlapping elements in any order. Symbolic strides are assumed not to
    overlap.
    """
    axes = [
        np.arange(n) * step
        for n, step in zip(size, stride, strict=True)
        if isinstance(n, int) and isinstance(step, int)
    ]
    if len(axes) < len(size):
        return None
    places = np.asarray(sum(np.ix_(*axes), np.int64(0))).reshape(-1).astype(np.int64)
    where, first_from_the_end = np.unique(places[::-1], return_index=True)
    if where.size == places.size:
        return None
    return places.size - 1 - first_from_the_end, where


def last_offset(size: Sequence[Dim], stride: Sequence[Dim], offset: Dim) -> Dim:
    """Returns the largest storage offset of the elements of a view that is not empty."""
    for extent, step in zip(size, stride, strict=True):
        offset = add(offset, mul(add(extent, -1), step))
    return offset


def _places(
    cx: Context, count: Dim, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim
) -> Node:
    """Returns the storage offset of each element of a view; symbolic ones are clamped to the end.

    Raises NotLowered if an element is known to be past the end of the `count` elements.
    """
    last = add(count, -1)
    is_empty = any(equal(s, 0) is True for s in size)
    is_inside = less_equal(last_offset(size, stride, offset), last)
    if is_inside is False and not is_empty:
        raise NotLowered("as_strided past the end of its operand")
    place = cx.full(offset, cx.iota(size, 0).tensor) if size else cx.scalar(offset, I64)
    for axis, step in enumerate(stride):
        place = cx.elementwise("add", place, cx.elementwise("mul", cx.iota(size, axis), step))
    return place if is_inside else cx.elementwise("min", place, last)
