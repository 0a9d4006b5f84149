"""Lowerings of gather and scatter: lax's dimension numbers as axis rules.

A window is read at `start + iota`. XLA's modes for a start out of range become explicit ops: clip
is max and min; fill is a select; drop moves the update past the end, where the scatter ignores it.
If the promise of "promise_in_bounds" is broken, a gather clips and a scatter drops, as in XLA;
JAX's derivatives rely on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stack.frontends.jax.lax.lowering import NoLowering, Site, lower
from stack.frontends.jax.lax.value_ranges import clamp, within
from stack.ir.axes import Axis, Rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, bounds, mul
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.types import DTYPES, I32


@dataclass
class Reads:
    """Builds the axis rule of a gather or scatter, one axis of the indexed array at a time."""

    axes: list[Axis] = field(default_factory=list)
    indices: list[Node] = field(default_factory=list)
    index_axes: list[tuple[str, ...]] = field(default_factory=list)

    def through(self, name: str) -> None:
        """Add an operand axis that is not indexed, and its name in the rule."""
        self.axes.append(Axis((name,)))

    def at(self, index: Node, names: Sequence[str]) -> None:
        """Add an operand axis that is indexed by the array `index`, whose axes are `names`."""
        self.axes.append(Axis((f"x{len(self.axes)}",), "!"))
        self.indices.append(index)
        self.index_axes.append(tuple(names))

    def gather(self, s: Site, x: Node, result: Sequence[str]) -> Node:
        """Builds the gather; if nothing is indexed, a transpose of `x`."""
        if not self.indices:
            own = [a.names[0] for a in self.axes]
            return s.transpose(x, [own.index(n) for n in result if n in own])
        rule = Rule((tuple(self.axes), *self._operands()), (_plain(result),))
        return s.b.op("gather", (x, *self.indices), {"rule": str(rule)})

    def scatter(
        self,
        s: Site,
        x: Node,
        updates: Node,
        names: Sequence[str],
        kind: str,
        drop: bool = False,
    ) -> Node:
        """Builds the scatter of `updates` with axes `names`; `drop` ignores those out of range."""
        whole = tuple(self.axes)
        rule = Rule((whole, *self._operands(), _plain(names)), (whole,))
        attrs = {"rule": str(rule), "kind": kind, **({"drop": True} if drop else {})}
        return s.b.op("scatter", (x, *self.indices, updates), attrs)

    def _operands(self) -> list[tuple[Axis, ...]]:
        return [_plain(names) for names in self.index_axes]


def _plain(names: Sequence[str]) -> tuple[Axis, ...]:
    return tuple(Axis((n,)) for n in names)


def index_type(s: Site, x: Node) -> Node:
    """Casts an index to a signed type of at least 32 bits, so that offsets can be added."""
    if x.dtype.kind == "b" or x.dtype.bits < 32:
        return s.cast(x, I32)
    if x.dtype.kind == "u":
        return s.cast(x, DTYPES["i64"])
    return x


def window(s: Site, start: Node, size: Dim, step: int = 1) -> Node:
    """Returns the indices that windows read: `start`, `start + step`, ... on a new last axis."""
    shape = (*start.shape, size)
    type_ = start.tensor.with_shape(shape)
    offset = s.b.iota(axis=len(shape) - 1, type=type_)
    if step != 1:
        offset = s.b.mul(offset, step)
    if start.tensor.rank:
        start = s.b.broadcast(start, axes=tuple(range(start.tensor.rank)), type=type_)
    elif start.op == "const" and not int(start.attrs["value"].array):
        return offset
    return s.b.add(start, offset)


@dataclass
class _Plan:
    """Dimension numbers of a gather or scatter, by operand axis.

    Attributes:
        sizes: window size along every operand axis.
        starts: start index of the operand axes that have one; its axes are `batch`.
        shared: operand axes that are batch axes, with their names.
        dropped: operand axes that the windows do not have.
        valid: true where the window is in range, over `batch`; None if it always is.
        as_given: start indices that a scatter may find out of range, as it then ignores updates.
    """

    shape: tuple[Dim, ...]
    sizes: tuple[Dim, ...]
    starts: dict[int, Node]
    shared: dict[int, str]
    dropped: set[int]
    batch: tuple[str, ...]
    valid: Node | None = None
    as_given: dict[int, Node] = field(default_factory=dict[int, Node])

    def name(self, axis: int) -> str:
        return self.shared.get(axis, f"w{axis}")

    @property
    def windows(self) -> list[int]:
        return [d for d in range(len(self.shape)) if d not in self.dropped and d not in self.shared]


def _starts(s: Site, indices: Node, axes: Sequence[int]) -> dict[int, Node]:
    """Returns the start index of windows by operand axis, from the index vectors.

    Component i of the vectors, their last axis, is for operand axis `axes[i]`.
    """
    batch = indices.shape[:-1]
    if len(axes) == 1:
        return {axes[0]: index_type(s, s.reshape(indices, batch))}
    out: dict[int, Node] = {}
    for i, axis in enumerate(axes):
        low = [0] * len(batch) + [i]
        part = s.slice(indices, low, [*batch, i + 1])
        out[axis] = index_type(s, s.reshape(part, batch))
    return out


def _settle_starts(s: Site, plan: _Plan, *, is_clipped: bool) -> None:
    """Clamps the start index of each window so that the window is inside the operand.

    Unless clipping is wanted, `plan.valid` records which windows were inside before.
    """
    for axis, start in plan.starts.items():
        top = add(plan.shape[axis], mul(plan.sizes[axis], -1))
        if not is_clipped:
            here = within(s, start, top)
            if here is not None:
                plan.valid = here if plan.valid is None else s.b.and_(plan.valid, here)
        plan.starts[axis] = clamp(s, start, top)


def _spread(s: Site, x: Node, axes: Sequence[int], like: Node) -> Node:
    """Broadcasts an array, whose axes are the `axes` of `like`, to the shape of `like`.

    A scalar is returned unchanged.
    """
    if not x.tensor.rank:
        return x
    return s.b.broadcast(x, axes=tuple(axes), type=like.tensor.with_dtype(x.dtype))


# ---- gather


@lower("gather")
def _gather(
    s: Site,
    x: Node,
    indices: Node,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    mode: Any,
    fill_value: Any,
    **_: Any,
) -> Node:
    dn = dimension_numbers
    batch = tuple(f"b{i}" for i in range(indices.tensor.rank - 1))
    offset_axes = [int(d) for d in dn.offset_dims]
    batch_axes = [i for i in range(s.type.rank) if i not in offset_axes]
    pairs = zip(dn.operand_batching_dims, dn.start_indices_batching_dims, strict=True)
    plan = _Plan(
        x.shape,
        s.dims(slice_sizes),
        _starts(s, indices, [int(d) for d in dn.start_index_map]),
        {int(d): batch[int(i)] for d, i in pairs},
        {int(d) for d in dn.collapsed_slice_dims},
        batch,
    )
    _settle_starts(s, plan, is_clipped=mode.name in ("CLIP", "PROMISE_IN_BOUNDS"))
    x = _narrow(s, x, plan)
    reads = _gather_reads(s, plan)
    names = dict(zip(batch_axes, batch, strict=True))
    names.update(zip(offset_axes, map(plan.name, plan.windows), strict=True))
    out = reads.gather(s, x, [names[i] for i in range(s.type.rank)])
    if out.tensor.rank != s.type.rank:  # nothing is indexed: all batch elements are equal
        own = {axis.names[0] for axis in reads.axes}
        axes = tuple(i for i in range(s.type.rank) if names[i] in own)
        out = s.b.broadcast(out, axes=axes, type=s.type)
    if plan.valid is None:
        return out
    missing = constant(_fill_value(fill_value, s), s.type.dtype)
    return s.b.select(_spread(s, plan.valid, batch_axes, out), out, missing)


def _narrow(s: Site, x: Node, plan: _Plan) -> Node:
    """Slices the operand of a gather to the window, on axes without a start index.

    Then removes those of these axes that windows do not have.
    """
    limit = [
        d if axis in plan.starts or axis in plan.shared else plan.sizes[axis]
        for axis, d in enumerate(plan.shape)
    ]
    x = s.slice(x, [0] * len(limit), limit)
    loose = [d for d in plan.dropped if d not in plan.starts]
    return s.reshape(x, [d for axis, d in enumerate(x.shape) if axis not in loose])


def _gather_reads(s: Site, plan: _Plan) -> Reads:
    reads = Reads()
    for axis, size in enumerate(plan.shape):
        start = plan.starts.get(axis)
        if axis in plan.shared or (axis not in plan.dropped and start is None):
            reads.through(plan.name(axis))
        elif axis in plan.dropped and start is not None:
            reads.at(start, plan.batch)
        elif start is not None and plan.sizes[axis] == size:
            reads.through(plan.name(axis))
        elif start is not None:
            moved = window(s, start, plan.sizes[axis])
            reads.at(moved, (*plan.batch, plan.name(axis)))
    return reads


def _fill_value(value: Any, s: Site) -> Any:
    if value is not None:
        return np.asarray(value)
    dtype = s.type.dtype
    if dtype.kind == "s":
        raise NoLowering("a fill of a storage type")
    if dtype.kind in "fc":
        return np.nan
    return True if dtype.kind == "b" else identity("min" if dtype.kind == "u" else "max", dtype)


# ---- scatter


_KINDS = {
    "scatter": "set",
    "scatter-add": "add",
    "scatter-sub": "add",
    "scatter-mul": "mul",
    "scatter-min": "min",
    "scatter-max": "max",
}
_NEUTRAL = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}


@lower(*_KINDS)
def _scatter(
    s: Site,
    x: Node,
    indices: Node,
    updates: Node,
    *,
    dimension_numbers: Any,
    mode: Any,
    update_jaxpr: Any,
    **_: Any,
) -> Node:
    name = s.eqn.primitive.name
    if name == "scatter" and update_jaxpr is not None:
        raise NoLowering("a function applied in place")
    if not x.tensor.rank:
        raise NoLowering("scatter into a scalar")
    if name == "scatter-sub":
        updates = s.b.neg(updates)
    plan, names = _scatter_plan(s, x, indices, updates, dimension_numbers)
    if any(bounds(add(plan.shape[d], mul(plan.sizes[d], -1)))[1] < 0 for d in plan.starts):
        return x  # no update fits
    starts = dict(plan.starts)
    _settle_starts(s, plan, is_clipped=mode.name == "CLIP")
    kind = _KINDS[name]
    batch_axes = [names.index(n) for n in plan.batch]
    if plan.valid is not None and kind != "set" and _drops(s, x, updates):
        is_single = len(starts) == 1 and plan.dropped.issuperset(starts)
        if is_single and all(i.dtype.kind == "i" and i.dtype.bits <= 32 for i in starts.values()):
            plan.as_given = starts
    elif plan.valid is not None and kind != "set":
        here = _spread(s, plan.valid, batch_axes, updates)
        updates = s.b.select(here, updates, constant(identity(_NEUTRAL[kind], x.dtype), x.dtype))
        plan.valid = None
    return _scatter_out(s, x, updates, plan, names, kind)


def _drops(s: Site, x: Node, updates: Node) -> bool:
    """True if a scatter that combines ignores indices out of range, instead of combining with
    neutral elements. These would be an array as large as the updates on a GPU, where a library runs
    the scatter; a few are as fast there.
    """
    if not s.importer.shared.on_gpu:
        return True
    sizes = x.tensor.size, updates.tensor.size
    return all(isinstance(n, int) for n in sizes) and sizes[1] > sizes[0]  # pyright: ignore


def _scatter_plan(
    s: Site, x: Node, indices: Node, updates: Node, dn: Any
) -> tuple[_Plan, list[str]]:
    """Returns the plan of a scatter, and the names of the axes of its updates.

    The plan is the equation's dimension numbers by operand axis.
    """
    batch = tuple(f"b{i}" for i in range(indices.tensor.rank - 1))
    pairs = zip(dn.operand_batching_dims, dn.scatter_indices_batching_dims, strict=True)
    shared = {int(d): batch[int(i)] for d, i in pairs}
    dropped = {int(d) for d in dn.inserted_window_dims}
    starts = _starts(s, indices, [int(d) for d in dn.scatter_dims_to_operand_dims])
    plan = _Plan(x.shape, (), starts, shared, dropped, batch)
    window_axes = [int(d) for d in dn.update_window_dims]
    others = iter(batch)
    names = ["" if i in window_axes else next(others) for i in range(updates.tensor.rank)]
    sizes: list[Dim] = [1] * len(x.shape)
    for axis, at in zip(plan.windows, window_axes, strict=True):
        names[at] = plan.name(axis)
        sizes[axis] = updates.shape[at]
    plan.sizes = tuple(sizes)
    return plan, names


def _scatter_out(
    s: Site, x: Node, updates: Node, plan: _Plan, names: Sequence[str], kind: str
) -> Node:
    outside = min(plan.starts) if plan.valid is not None else -1  # the axis that drops updates
    reads = Reads()
    for axis, size in enumerate(plan.shape):
        start = plan.starts.get(axis)
        if axis in plan.shared:
            reads.through(plan.name(axis))
            continue
        is_window = axis not in plan.dropped
        if is_window and plan.sizes[axis] == size and axis != outside:
            reads.through(plan.name(axis))
            continue
        own: tuple[str, ...] = plan.batch if start is not None else ()
        index = start if start is not None else constant(0, I32)
        if is_window:
            index = window(s, index, plan.sizes[axis])
            own = (*own, plan.name(axis))
        if axis == outside and axis in plan.as_given:
            index = plan.as_given[axis]
        elif axis == outside:
            index, own = _or_outside(s, plan, index, own, size)
        reads.at(index, own)
    return reads.scatter(s, x, updates, names, kind, drop=plan.valid is not None)


def _or_outside(
    s: Site, plan: _Plan, index: Node, own: Sequence[str], size: Dim
) -> tuple[Node, tuple[str, ...]]:
    """Returns the index where the window is in range, else `size`, which a scatter ignores.

    Also returns the names of its axes, `own`.
    """
    valid = plan.valid
    assert valid is not None
    if valid.tensor.rank and len(own) > valid.tensor.rank:
        like = index.tensor.with_dtype(valid.dtype)
        valid = s.b.broadcast(valid, axes=tuple(range(valid.tensor.rank)), type=like)
    return s.b.select(valid, index, s.b.size_of(size, index.dtype)), tuple(own)
