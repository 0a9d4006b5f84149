"""Lowerings of dynamic slices: static slices if the start is known, else gathers of windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.frontends.jax.lax.index import Reads, index_type, window
from stack.frontends.jax.lax.lowering import Site, lower
from stack.frontends.jax.lax.value_ranges import clamp, value_range
from stack.ir.dim import Dim, add, mul
from stack.ir.node import Node


def _known(start: Node) -> int | None:
    low, high = value_range(start)
    return low if low == high else None


@lower("dynamic_slice")
def _dynamic_slice(s: Site, x: Node, *starts: Node, slice_sizes: Sequence[int], **_: Any) -> Node:
    sizes = s.dims(slice_sizes)
    reads = Reads()
    names: list[str] = []
    low: list[Dim] = [0] * len(sizes)
    high: list[Dim] = list(x.shape)
    for axis, (start, size) in enumerate(zip(starts[: len(sizes)], sizes, strict=True)):
        top = add(x.shape[axis], mul(size, -1))
        place = clamp(s, index_type(s, start), top)
        known = _known(place)
        if top == 0 or known is not None:
            low[axis] = 0 if top == 0 or known is None else known
            high[axis] = add(low[axis], size)
            reads.through(f"w{axis}")
            names.append(f"w{axis}")
        elif size == 1:
            reads.at(place, ())
        else:
            reads.at(window(s, place, size), (f"w{axis}",))
            names.append(f"w{axis}")
    return s.reshape(reads.gather(s, s.slice(x, low, high), names), sizes)


@lower("dynamic_update_slice")
def _dynamic_update_slice(s: Site, x: Node, update: Node, *starts: Node, **_: Any) -> Node:
    places = [
        clamp(s, index_type(s, start), add(d, mul(size, -1)))
        for start, d, size in zip(starts, x.shape, update.shape, strict=True)
    ]
    moved = [a for a, d in enumerate(x.shape) if update.shape[a] != d]
    if not moved:
        return update
    if len(moved) == 1 and (at := _known(places[moved[0]])) is not None:
        return _replace(s, x, update, moved[0], at)
    reads = Reads()
    names: list[str] = []
    for axis, place in enumerate(places):
        name = f"w{axis}"
        if axis not in moved:
            reads.through(name)
        elif update.shape[axis] == 1:
            reads.at(place, ())
            continue
        else:
            reads.at(window(s, place, update.shape[axis]), (name,))
        names.append(name)
    kept = [d for a, d in enumerate(update.shape) if a not in moved or d != 1]
    return reads.scatter(s, x, s.reshape(update, kept), names, "set")


def _replace(s: Site, x: Node, update: Node, axis: int, at: int) -> Node:
    """Returns `x` with `update` in place of its elements from index `at` on, along an axis."""
    zero: list[Dim] = [0] * x.tensor.rank
    before = list(x.shape)
    before[axis] = at
    after = list(zero)
    after[axis] = add(at, update.shape[axis])
    parts = [s.slice(x, zero, before), update, s.slice(x, after, x.shape)]
    parts = [p for p in parts if p.shape[axis] != 0]
    return s.b.op("concat", parts, {"axis": axis}) if len(parts) > 1 else parts[0]
