"""Slices a block in memory along one axis, also through conversions and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stack.ir.builder import Builder, constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import converts, in_windows, is_load, unconverted
from stack.ir.types import I64
from stack.passes.tiling.frame import static


def plus(b: Builder, x: Node, y: Node) -> Node:
    """Builds the node for x + y, two integers; returns the other one if one of them is the constant
    0.
    """
    zero = constant(0, I64)
    if zero in (x, y):
        return y if x is zero else x
    return b.add(x, y)


def is_sliced(block: Node) -> bool:
    """True if a block is one that `part` can slice: loaded without a mask, maybe in windows."""
    load = unconverted(block)
    load = load.args[0] if in_windows(load) else load
    return is_load(load) and access_parts(load)[1] is None


def part(b: Builder, block: Node, axis: int, start: Node, size: int) -> Node:
    """Slices a block of values that a kernel loads: `size` elements along `axis`, from index
    `start` on. The loads below the block are narrowed, instead of loading all of it.
    """
    if converts(block):
        inner = part(b, block.args[0], axis, start, size)
        return b.cast(inner, type=inner.tensor.with_dtype(block.dtype))
    if in_windows(block):
        return _of_windows(b, block, axis, start, size)
    return _cut(b, block, axis, start, size)


def _cut(b: Builder, block: Node, axis: int, start: Node, size: int) -> Node:
    """Slices a block that is a `load`: loads `size` elements along the axis, `start` further on."""
    memory, *index = block.args
    shape = tuple(size if i == axis else s for i, s in enumerate(block.shape))
    at = memory.tensor.rank - len(shape) + axis
    index[at] = plus(b, index[at], start)
    return b.load(memory, *index, type=block.tensor.with_shape(shape))


def _of_windows(b: Builder, block: Node, axis: int, start: Node, size: int) -> Node:
    """Slices a block of overlapping windows, the result of an `unfold` node.

    Along an axis of taps, the windows become `size` taps long, and only the elements that they
    cover are loaded. Along an axis without windows, the elements below the windows are sliced.
    """
    (source,), window = block.args, list(block.attrs["window"])
    tap = axis - block.attrs["axis"] - len(window)
    axis -= len(window) if tap >= 0 else 0
    covered = size
    if 0 <= tap < len(window):
        apart = block.attrs["dilation"][tap]
        covered = static(source.shape[axis]) - (window[tap] - size) * apart
        start = b.mul(start, apart)
        window[tap] = size
    cut = _cut(b, source, axis, start, covered)
    return b.unfold(cut, **{**block.attrs, "window": tuple(window)})


def slice_of(b: Builder, block: Node, turns: Sequence[Node]) -> Node:
    """Returns the slice, along the outermost axis, of the next panel `block` that one iteration of
    the loops over row tiles prefetches. All iterations together prefetch the whole block.

    `turns`: index variables of the enclosing loops, outermost first.
    """
    extents = [static(t.attrs["extent"]) for t in turns]
    (number, *rest), inner = turns, extents[1:]
    for turn, count in zip(rest, inner, strict=True):
        number = b.add(b.mul(number, count), turn)  # row-major
    axis = next((i for i, size in enumerate(block.shape) if size != 1), 0)
    extent = static(block.shape[axis])
    size = -(-extent // math.prod(extents))
    start = b.mul(number, size)
    if size * math.prod(extents) > extent:
        start = b.min(start, extent - size)
    return part(b, block, axis, start, size)
