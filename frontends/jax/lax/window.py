"""Lowerings of reductions over sliding windows: pooling, and the gradient of max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.frontends.jax.jaxpr.dims import known
from stack.frontends.jax.lax.data_movement import pad
from stack.frontends.jax.lax.index import Reads, window
from stack.frontends.jax.lax.lowering import NoLowering, Site, lower
from stack.frontends.jax.lax.reduce import combine, monoid, reduce
from stack.ir.builder import constant
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.types import I32

MAX_TAPS = 32  # longer windows are read by one gather, not by one slice per tap


@lower("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _reduce_window(s: Site, x: Node, **params: Any) -> Node:
    kind = s.eqn.primitive.name.removeprefix("reduce_window_")
    if x.dtype.kind == "b":
        kind = {"max": "or", "min": "and"}.get(str(kind), str(kind))
    return pooled(s, x, kind, **params)


@lower("reduce_window")
def _general_reduce_window(s: Site, *operands: Node, jaxpr: Any, **params: Any) -> Node:
    kind = monoid(jaxpr)
    if kind is None or len(operands) != 2:
        raise NoLowering("a window reduction by an arbitrary function")
    return combine(s, kind, pooled(s, operands[0], kind, **params), operands[1])


def pooled(
    s: Site,
    x: Node,
    kind: str,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[Any],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
    **_: Any,
) -> Node:
    """Reduces windows one axis at a time, which is correct for commutative reductions."""
    neutral = constant(identity(kind, x.dtype), x.dtype)
    low, high = zip(*padding, strict=True) if padding else ((), ())
    x = pad(s, x, neutral, low, high, [d - 1 for d in base_dilation])
    for axis, (taps, stride, gap) in enumerate(
        zip(window_dimensions, window_strides, window_dilation, strict=True)
    ):
        x = _pool_axis(s, x, kind, axis, int(taps), int(stride), int(gap), s.type.shape[axis])
    return x


def _pool_axis(
    s: Site, x: Node, kind: str, axis: int, taps: int, stride: int, gap: int, count: Any
) -> Node:
    shape = list(x.shape)
    shape[axis] = count
    if taps == shape[axis] == 1 == x.shape[axis]:
        return x
    if count == 1 and taps == x.shape[axis]:
        return s.reshape(reduce(s, x, kind, [axis]), shape)
    if taps > MAX_TAPS:
        wide = Reads()
        names = [f"w{i}" for i in range(len(shape))]
        for i in range(len(shape)):
            if i == axis:
                wide.at(_places(s, count, stride, taps, gap), (names[i], "tap"))
            else:
                wide.through(names[i])
        return reduce(s, wide.gather(s, x, [*names, "tap"]), kind, [len(shape)])
    out: Node | None = None
    for tap in range(taps):
        low = [0] * len(shape)
        low[axis] = tap * gap
        high = list(x.shape)
        high[axis] = tap * gap + (count - 1) * stride + 1 if count != 0 else tap * gap
        step = [stride if i == axis else 1 for i in range(len(shape))]
        part = s.slice(x, low, high, step)
        out = part if out is None else combine(s, kind, out, part)
    assert out is not None
    return out


def _places(s: Site, count: Any, stride: int, taps: int, gap: int) -> Node:
    """Returns, for one axis, the operand index of each element of each window: `[count, taps]`."""
    start = window(s, constant(0, I32), count, stride)
    return window(s, start, taps, gap)


# ---- max pooling, backward and forward


def _patches(
    s: Site, x: Node, window_dimensions: Sequence[int], strides: Sequence[int],
    gaps: Sequence[int], counts: Sequence[Dim],
) -> Node:  # fmt: skip
    """Gathers every window along one last axis: `[windows..., taps]`."""
    reads = Reads()
    names = [f"o{i}" for i in range(len(counts))]
    taps: list[str] = []
    for axis, count in enumerate(counts):
        if window_dimensions[axis] == 1 and strides[axis] == 1 and count == x.shape[axis]:
            reads.through(names[axis])
            continue
        places = _places(s, count, strides[axis], window_dimensions[axis], gaps[axis])
        reads.at(places, (names[axis], f"t{axis}"))
        taps.append(f"t{axis}")
    found = reads.gather(s, x, [*names, *taps])
    total = 1
    for d in found.shape[len(counts) :]:
        total *= int(d)
    return s.reshape(found, [*counts, total])


def _chosen(
    s: Site, x: Node, select_prim: Any, dims: Sequence[int], strides: Sequence[int],
    gaps: Sequence[int], counts: Sequence[Any],
) -> Reads:  # fmt: skip
    """Returns the rule that reads, for each window, the element of `x` that it selects.

    XLA selects tap by tap: it takes the next element unless the current one compares "ge" (or "le")
    to it. So the first of equal elements is kept; if either side is nan, the next one is taken.
    """
    kind = {"ge": "max", "le": "min"}.get(select_prim.name)
    if kind is None or not known(x.shape):
        raise NoLowering("a window selection by an arbitrary function")
    patches = _patches(s, x, dims, strides, gaps, counts)
    rank = len(counts)
    names = [f"o{i}" for i in range(rank)]
    best = _selected(s, patches, kind)
    reads = Reads()
    places: dict[int, Node] = {}
    for axis in reversed(range(rank)):
        if dims[axis] == 1 and strides[axis] == 1 and counts[axis] == x.shape[axis]:
            continue
        tap = s.b.rem(best, dims[axis])
        best = s.b.div(best, dims[axis])
        start = s.b.mul(s.b.iota(axis=axis, type=tap.tensor), strides[axis])
        places[axis] = s.b.add(start, s.b.mul(tap, gaps[axis]) if gaps[axis] != 1 else tap)
    for axis in range(rank):
        if axis in places:
            reads.at(places[axis], names)
        else:
            reads.through(names[axis])
    return reads


def _selected(s: Site, patches: Node, kind: str) -> Node:
    """Returns the tap that each row of `patches` selects: the extremum after its last nan."""
    axis = patches.tensor.rank - 1
    tap_type = patches.tensor.with_dtype(I32)
    if patches.dtype.kind != "f":
        return s.b.argreduce(patches, kind=kind, axis=axis, type=tap_type)
    tap = s.b.iota(axis=axis, type=tap_type)
    after = s.b.add(s.b.select(s.b.ne(patches, patches), tap, -1), 1)
    first = s.b.reduce(after, kind="max", axes=(axis,))
    behind = s.b.broadcast(first, axes=tuple(range(axis)), type=tap_type)
    worst = constant(identity(kind, patches.dtype), patches.dtype)
    rest = s.b.select(s.b.ge(tap, behind), patches, worst)
    best = s.b.max(s.b.argreduce(rest, kind=kind, axis=axis, type=tap_type), first)
    return s.b.min(best, int(patches.shape[axis]) - 1)  # a nan in the last tap is selected


@lower("select_and_scatter_add")
def _select_and_scatter_add(
    s: Site, source: Node, operand: Node, *, select_prim: Any, window_dimensions: Any,
    window_strides: Any, padding: Any, **_: Any,
) -> Node:  # fmt: skip
    low, high = zip(*padding, strict=True)
    worst = identity("max" if select_prim.name == "ge" else "min", operand.dtype)
    padded = pad(s, operand, constant(worst, operand.dtype), low, high)
    counts = source.shape
    gaps = (1,) * len(counts)
    reads = _chosen(s, padded, select_prim, window_dimensions, window_strides, gaps, counts)
    empty = s.fill(0, padded.tensor)
    names = [f"o{i}" for i in range(len(counts))]
    full = reads.scatter(s, empty, source, names, "add") if reads.indices else source
    zero = constant(0, operand.dtype)
    return pad(s, full, zero, [-lo for lo in low], [-hi for hi in high])


@lower("select_and_gather_add")
def _select_and_gather_add(
    s: Site, tangents: Node, operand: Node, *, select_prim: Any, window_dimensions: Any,
    window_strides: Any, padding: Any, base_dilation: Any, window_dilation: Any, **_: Any,
) -> Node:  # fmt: skip
    low, high = zip(*padding, strict=True)
    between = [d - 1 for d in base_dilation]
    worst = identity("max" if select_prim.name == "ge" else "min", operand.dtype)
    padded = pad(s, operand, constant(worst, operand.dtype), low, high, between)
    moved = pad(s, tangents, constant(0, operand.dtype), low, high, between)
    counts = s.type.shape
    reads = _chosen(
        s, padded, select_prim, window_dimensions, window_strides, window_dilation, counts
    )
    return reads.gather(s, moved, [f"o{i}" for i in range(len(counts))])
