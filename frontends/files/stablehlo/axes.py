"""Lowerings of StableHLO ops that move elements, reduce axes or multiply."""

from __future__ import annotations

import re

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from stack.frontends.files.lowering_table import sizes
from stack.frontends.files.stablehlo.lowering import Call, lowers, number_like
from stack.ir.algebra import COMBINE
from stack.ir.axes import LETTERS
from stack.ir.node import Node
from stack.ir.traits import splat
from stack.ir.types import BOOL, TensorType


@lowers("reshape")
def reshape(call: Call) -> Node:
    (x,) = call.args
    return x if x.type == call.type else call.b.reshape(x, type=call.type)


@lowers("transpose")
def transpose(call: Call) -> Node:
    return call.b.transpose(*call.args, perm=tuple(call.ints("permutation")))


@lowers("broadcast_in_dim")
def broadcast(call: Call) -> Node:
    """Dims of size 1 are dropped first, since the IR repeats along new axes only."""
    (x,) = call.args
    return spread(call, x, call.ints("broadcast_dimensions"), call.type)


def spread(call: Call, x: Node, dims: list[int], made: TensorType) -> Node:
    """Repeats a value whose axis i becomes axis `dims[i]`."""
    kept = [i for i, d in enumerate(dims) if x.shape[i] != 1 or made.shape[d] == 1]
    if len(kept) < len(dims):
        small = x.tensor.with_shape(tuple(x.shape[i] for i in kept))
        x = call.b.reshape(x, type=small)
    axes = tuple(dims[i] for i in kept)
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order != [*range(len(axes))]:
        x = call.b.transpose(x, perm=tuple(order))
    if x.type == made:
        return x
    return call.b.broadcast(x, axes=tuple(sorted(axes)), type=made)


@lowers("slice")
def slice_(call: Call) -> Node:
    names = {"start": "start_indices", "limit": "limit_indices", "step": "strides"}
    bounds = {own: tuple(call.ints(name)) for own, name in names.items()}
    return call.b.slice(*call.args, **bounds)


@lowers("reverse")
def reverse(call: Call) -> Node:
    return call.b.reverse(*call.args, axes=tuple(call.ints("dimensions")))


@lowers("concatenate")
def concat(call: Call) -> Node:
    axis = call.number("dimension")
    return call.args[0] if len(call.args) == 1 else call.b.concat(*call.args, axis=axis)


@lowers("pad")
def pad(call: Call) -> Node:
    """Negative padding is a slice first."""
    x, value = call.args
    low, high = call.ints("edge_padding_low"), call.ints("edge_padding_high")
    interior = call.ints("interior_padding")
    if min(*low, *high, 0) < 0:
        if any(interior):
            raise call.fail("interior padding with negative padding at the ends")
        start = tuple(max(0, -v) for v in low)
        limit = tuple(s - max(0, -v) for s, v in zip(sizes(x), high, strict=True))
        x = call.b.slice(x, start=start, limit=limit, step=(1,) * len(start))
        low, high = [max(0, v) for v in low], [max(0, v) for v in high]
    return call.b.pad(x, value, low=tuple(low), high=tuple(high), interior=tuple(interior))


@lowers("iota")
def iota(call: Call) -> Node:
    return call.b.iota(axis=call.number("iota_dimension"), type=call.type)


@lowers("reduce")
def reduce(call: Call) -> Node:
    x, kind = call.args[0], call.combines()
    made = call.b.reduce(x, kind=kind, axes=tuple(sorted(call.ints("dimensions"))))
    return _from(call, made, kind)


def _from(call: Call, made: Node, kind: str) -> Node:
    """Combines a reduction with its initial value, unless that changes nothing."""
    start, value = call.args[1], splat(call.args[1])
    limits = np.iinfo(start.dtype.numpy) if start.dtype.is_integer else None
    low, high = (limits.min, limits.max) if limits else (-np.inf, np.inf)
    neutral = {"sum": 0, "prod": 1, "max": low, "min": high, "and": -1, "or": 0}[kind]
    if start.dtype is BOOL:
        neutral = {"and": True, "or": False, "max": False, "min": True}.get(kind, neutral)
    if value is not None and value == neutral:
        return made
    return call.b.op(COMBINE[kind], [made, start])


@lowers("reduce_window")
def reduce_window(call: Call) -> Node:
    """Pads with the initial value; windows are then axes that are reduced."""
    x, kind = call.args[0], call.combines()
    rank = x.tensor.rank
    ones = [1] * rank
    given = call.operation.attributes
    if "base_dilations" in given and call.ints("base_dilations") != ones:
        raise call.fail("dilation of the operand is not imported")
    window = tuple(call.ints("window_dimensions"))
    stride = tuple(call.ints("window_strides")) if "window_strides" in given else tuple(ones)
    apart = tuple(call.ints("window_dilations")) if "window_dilations" in given else tuple(ones)
    if "padding" in given:
        widths = np.array(call.attr("padding")).reshape(-1, 2)
        widths = np.broadcast_to(widths, (rank, 2))
        low, high = (tuple(int(v) for v in widths[:, side]) for side in (0, 1))
        if any((*low, *high)):
            x = call.b.pad(x, call.args[1], low=low, high=high, interior=(0,) * rank)
    windows = call.b.unfold(x, axis=0, window=window, stride=stride, dilation=apart)
    made = call.b.reduce(windows, kind=kind, axes=tuple(range(rank, 2 * rank)))
    return _from(call, made, kind)


@lowers("dot_general")
def dot(call: Call) -> Node:
    """An axis rule with a letter for each axis: batch, contracted, then those of each side."""
    x, y = call.args
    at = stablehlo.DotDimensionNumbers(call.attr("dot_dimension_numbers"))
    left, right = [""] * x.tensor.rank, [""] * y.tensor.rank
    letters = iter(LETTERS)
    batch: list[str] = []
    pairs = zip(at.lhs_batching_dimensions, at.rhs_batching_dimensions, strict=True)
    for i, j in pairs:
        left[i] = right[j] = next(letters)
        batch.append(left[i])
    pairs = zip(at.lhs_contracting_dimensions, at.rhs_contracting_dimensions, strict=True)
    for i, j in pairs:
        left[i] = right[j] = next(letters)
    own: list[list[str]] = []
    for names in (left, right):
        own.append([])
        for i, name in enumerate(names):
            if not name:
                names[i] = next(letters)
                own[-1].append(names[i])
    made = " ".join([*batch, *own[0], *own[1]])
    wide = call.b.dot(x, y, rule=f"{' '.join(left)}, {' '.join(right)} -> {made}")
    return wide if wide.type == call.type else call.b.cast(wide, type=call.type)


@lowers("convolution")
def convolution(call: Call) -> Node:
    """Dims in any order are transposed to images, channels, space and back."""
    x, w = call.args
    text = str(call.attr("dimension_numbers"))
    found = re.search(r"\[(.*?)\]x\[(.*?)\]->\[(.*?)\]", text)
    if found is None:
        raise call.fail(f"its dims are not read: {text}")
    sides = [[v.strip() for v in part.split(",")] for part in found.groups()]
    rank = x.tensor.rank - 2
    space = [str(i) for i in range(rank)]
    given = call.operation.attributes

    def ints(name: str, default: int) -> tuple[int, ...]:
        return tuple(call.ints(name)) if name in given else (default,) * rank

    if call.number("batch_group_count") != 1:
        raise call.fail("batch_group_count is not imported")
    if "window_reversal" in given and any(bool(v) for v in call.attr("window_reversal")):
        raise call.fail("reversed windows are not imported")
    low, high = (0,) * rank, (0,) * rank
    if "padding" in given and rank:
        widths = np.broadcast_to(np.array(call.attr("padding")).reshape(-1, 2), (rank, 2))
        low, high = (tuple(int(v) for v in widths[:, side]) for side in (0, 1))
    x = _ordered(call, x, [sides[0].index(n) for n in ("b", "f", *space)])
    w = _ordered(call, w, [sides[1].index(n) for n in ("o", "i", *space)])
    made = call.b.conv(
        x, w, stride=ints("window_strides", 1), low=low, high=high,
        lhs_dilation=ints("lhs_dilation", 1), rhs_dilation=ints("rhs_dilation", 1),
        groups=call.number("feature_group_count"),
    )  # fmt: skip
    return _ordered(call, made, [["b", "f", *space].index(n) for n in sides[2]])


def _ordered(call: Call, x: Node, perm: list[int]) -> Node:
    return x if perm == [*range(len(perm))] else call.b.transpose(x, perm=tuple(perm))


@lowers("gather")
def gather(call: Call) -> Node:
    """Whole rows of one axis; indices out of range are clamped."""
    x, index = call.args
    at = stablehlo.GatherDimensionNumbers(call.attr("dimension_numbers"))
    taken, whole = call.ints("slice_sizes"), sizes(x)
    axes, rank = list(at.start_index_map), index.tensor.rank
    is_vector = at.index_vector_dim == rank - 1 and rank and index.shape[-1] == 1
    is_rows = (
        len(axes) == 1
        and list(at.collapsed_slice_dims) == axes
        and not list(at.operand_batching_dims)
    )
    rows = [1 if [i] == axes else s for i, s in enumerate(whole)]
    fits = is_rows and taken == rows
    if not fits or not (is_vector or at.index_vector_dim == rank):
        raise call.fail("only whole rows of one axis are gathered")
    if is_vector:
        index = call.b.reshape(index, type=index.tensor.with_shape(index.shape[:-1]))
    (axis,) = axes
    index = clamped(call, index, whole[axis] - 1)
    own = [f"d{i}" for i in range(len(whole))]
    places = iter([f"n{i}" for i in range(index.tensor.rank)])
    rest = iter([n for i, n in enumerate(own) if i != axis])
    offsets = set(at.offset_dims)
    made = [next(rest) if i in offsets else next(places) for i in range(call.type.rank)]
    read = " ".join(f"{n}!" if i == axis else n for i, n in enumerate(own))
    ahead = " ".join(f"n{i}" for i in range(index.tensor.rank))
    return call.b.gather(x, index, rule=f"{read}, {ahead} -> {' '.join(made)}")


def clamped(call: Call, index: Node, most: int) -> Node:
    """Limits indices to 0 and `most`."""
    low = call.b.max(index, number_like(call, 0, index))
    return call.b.min(low, number_like(call, most, index))


@lowers("dynamic_slice")
def dynamic_slice(call: Call) -> Node:
    """Reads rows of each axis of which a part is taken, from a start that is clamped."""
    x, *starts = call.args
    for axis, (start, size) in enumerate(zip(starts, call.ints("slice_sizes"), strict=True)):
        if size == sizes(x)[axis]:
            continue
        rows = _rows(call, start, size, sizes(x)[axis])
        own = [f"d{i}" for i in range(x.tensor.rank)]
        read = " ".join(f"{n}!" if i == axis else n for i, n in enumerate(own))
        made = " ".join("n" if i == axis else n for i, n in enumerate(own))
        x = call.b.gather(x, rows, rule=f"{read}, n -> {made}")
    return x


def _rows(call: Call, start: Node, size: int, whole: int) -> Node:
    first = clamped(call, start, whole - size)
    line = call.b.iota(axis=0, type=TensorType(start.dtype, (size,)))
    return call.b.add(line, call.b.broadcast(first, axes=(), type=line.type))


@lowers("dynamic_update_slice")
def dynamic_update_slice(call: Call) -> Node:
    """Writes rows of one axis, from a start that is clamped."""
    x, update, *starts = call.args
    axes = [i for i, (s, n) in enumerate(zip(sizes(x), sizes(update), strict=True)) if s != n]
    if not axes:
        return update
    if len(axes) > 1:
        raise call.fail("only updates along one axis are imported")
    (axis,) = axes
    rows = _rows(call, starts[axis], sizes(update)[axis], sizes(x)[axis])
    own = [f"d{i}" for i in range(x.tensor.rank)]
    read = " ".join(f"{n}!" if i == axis else n for i, n in enumerate(own))
    made = " ".join("n" if i == axis else n for i, n in enumerate(own))
    return call.b.scatter(x, rows, update, rule=f"{read}, n, {made} -> {read}", kind="set")
