"""Lowerings of ONNX ops that move elements, and of those that make shapes."""

from __future__ import annotations

import numpy as np

from stack.frontends.files.lowering_table import sizes
from stack.frontends.files.onnx.elementwise import array_constant
from stack.frontends.files.onnx.lowering import Call, known, lowers
from stack.ir.node import Node
from stack.ir.types import I32, TensorType


@lowers("Shape")
def shape(call: Call) -> Node:
    own = sizes(call.input(0))
    start, end = call.attrs.get("start", 0), call.attrs.get("end", len(own))
    return array_constant(np.asarray(own[start:end], np.int64), call)


@lowers("Size")
def size(call: Call) -> Node:
    return array_constant(np.asarray(int(np.prod(sizes(call.input(0)))), np.int64), call)


@lowers("Reshape")
def reshape(call: Call) -> Node:
    """A 0 keeps the size of that dim, unless `allowzero`; one -1 is computed."""
    x, wanted = call.input(0), call.integers(1, "shape") or []
    own = sizes(x)
    if not call.attrs.get("allowzero"):
        wanted = [own[i] if s == 0 else s for i, s in enumerate(wanted)]
    return call.reshape(x, _resolved(wanted, int(np.prod(own)), call))


def _resolved(wanted: list[int], total: int, call: Call) -> list[int]:
    rest = int(np.prod([s for s in wanted if s != -1]))
    found = [total // max(rest, 1) if s == -1 else s for s in wanted]
    if int(np.prod(found)) != total:
        raise call.fail(f"{total} elements do not have shape {wanted}")
    return found


@lowers("Flatten")
def flatten(call: Call) -> Node:
    x = call.input(0)
    axis = call.axis(1)
    own = sizes(x)
    return call.reshape(x, (int(np.prod(own[:axis])), int(np.prod(own[axis:]))))


@lowers("Squeeze")
def squeeze(call: Call) -> Node:
    x = call.input(0)
    own, axes = sizes(x), call.integers(1, "axes")
    gone = (
        [i for i, s in enumerate(own) if s == 1] if axes is None else [a % len(own) for a in axes]
    )
    return call.reshape(x, [s for i, s in enumerate(own) if i not in gone])


@lowers("Unsqueeze")
def unsqueeze(call: Call) -> Node:
    x, axes = call.input(0), call.integers(1, "axes") or []
    rank = x.tensor.rank + len(axes)
    own, added = iter(sizes(x)), {a % rank for a in axes}
    return call.reshape(x, [1 if i in added else next(own) for i in range(rank)])


@lowers("Transpose")
def transpose(call: Call) -> Node:
    x = call.input(0)
    return call.transpose(x, call.attrs.get("perm") or [*reversed(range(x.tensor.rank))])


@lowers("Expand")
def expand(call: Call) -> Node:
    x = call.input(0)
    wanted = np.broadcast_shapes(sizes(x), tuple(call.integers(1) or ()))
    return call.spread(x, wanted)


@lowers("Tile")
def tile(call: Call) -> Node:
    """Repeats each axis: an axis of copies before it, then both are one."""
    x, counts = call.input(0), call.integers(1) or []
    own = sizes(x)
    axes = tuple(2 * i + 1 for i in range(len(own)))
    wide = tuple(n for pair in zip(counts, own, strict=True) for n in pair)
    copies = call.b.broadcast(x, axes=axes, type=TensorType(x.dtype, wide))
    return call.reshape(copies, [n * s for n, s in zip(counts, own, strict=True)])


@lowers("Concat")
def concat(call: Call) -> Node:
    values = [call.input(i) for i in range(len(call.inputs))]
    axis = call.axis(0)
    return values[0] if len(values) == 1 else call.b.concat(*values, axis=axis)


@lowers("Split")
def split(call: Call) -> list[Node]:
    """Parts of given sizes, or equal ones, of which the last may be smaller."""
    x, parts = call.input(0), call.integers(1, "split")
    axis = call.axis(0)
    whole = sizes(x)[axis]
    if parts is None:
        count = int(call.attrs.get("num_outputs", call.outputs))
        each = -(-whole // count)
        parts = [min(each, whole - i * each) for i in range(count)]
    ends = np.cumsum(parts)
    return [_part(call, x, axis, int(e) - p, int(e)) for e, p in zip(ends, parts, strict=True)]


def _part(call: Call, x: Node, axis: int, start: int, limit: int, step: int = 1) -> Node:
    own = sizes(x)
    lows, ends, steps = [0] * len(own), [*own], [1] * len(own)
    lows[axis], ends[axis], steps[axis] = start, limit, step
    if (start, limit, step) == (0, own[axis], 1):
        return x
    return call.b.slice(x, start=tuple(lows), limit=tuple(ends), step=tuple(steps))


@lowers("Slice")
def slice_(call: Call) -> Node:
    """Bounds as in Python; a negative step reverses the axis first."""
    x = call.input(0)
    starts, ends = call.integers(1, "starts") or [], call.integers(2, "ends") or []
    axes = call.integers(3, "axes") or [*range(len(starts))]
    steps = call.integers(4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= x.tensor.rank
        places = range(sizes(x)[axis])[slice(start, end, step)]
        if not places:
            x = _part(call, x, axis, 0, 0)
            continue
        low, high = min(places[0], places[-1]), max(places[0], places[-1])
        if step < 0:
            x = call.b.reverse(_part(call, x, axis, low, high + 1), axes=(axis,))
            x = _part(call, x, axis, 0, high - low + 1, -step)
        else:
            x = _part(call, x, axis, low, high + 1, step)
    return x


@lowers("Pad")
def pad(call: Call) -> Node:
    """Only with a constant."""
    x, widths = call.input(0), call.integers(1, "pads") or []
    mode = call.attrs.get("mode", "constant")
    if mode != "constant":
        raise call.fail(f"mode {mode!r} is not imported, only 'constant'")
    rank = x.tensor.rank
    axes = [a % rank for a in call.integers(3) or range(rank)]
    low, high = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        low[axis], high[axis] = widths[i], widths[len(axes) + i]
    scalar = call.b.const(np.asarray(call.attrs.get("value", 0)).astype(x.dtype.numpy), x.dtype)
    value = call.reshape(call.input(2), ()) if call.has(2) else scalar
    if min(*low, *high, 0) < 0:
        starts = tuple(max(0, -v) for v in low)
        limits = tuple(s - max(0, -v) for s, v in zip(sizes(x), high, strict=True))
        x = call.b.slice(x, start=starts, limit=limits, step=(1,) * rank)
    widths_of = {"low": tuple(max(0, v) for v in low), "high": tuple(max(0, v) for v in high)}
    return call.b.pad(x, value, **widths_of, interior=(0,) * rank)


@lowers("Gather")
def gather(call: Call) -> Node:
    """Rows of an axis at indices, which may be negative."""
    x, index = call.input(0), call.input(1)
    axis = call.axis(0)
    if known(index) is not None and index.tensor.rank == 0:
        place = int(call.array(1)) % sizes(x)[axis]
        row = _part(call, x, axis, place, place + 1)
        return call.reshape(row, [s for i, s in enumerate(sizes(x)) if i != axis])
    index = _positive(call, index, sizes(x)[axis])
    own = [f"d{i}" for i in range(x.tensor.rank)]
    places = [f"n{i}" for i in range(index.tensor.rank)]
    read = [f"{n}!" if i == axis else n for i, n in enumerate(own)]
    made = [*own[:axis], *places, *own[axis + 1 :]]
    return call.b.gather(x, index, rule=f"{' '.join(read)}, {' '.join(places)} -> {' '.join(made)}")


def _positive(call: Call, index: Node, count: int) -> Node:
    """Counts negative indices from the end."""
    array = known(index)
    if array is not None:
        return array_constant(np.where(array < 0, array + count, array).astype(array.dtype), call)
    zero = call.full(0, index)
    return call.b.select(call.b.lt(index, zero), call.b.add(index, call.full(count, index)), index)


@lowers("ConstantOfShape")
def constant_of_shape(call: Call) -> Node:
    value = np.asarray(call.attrs.get("value", np.float32(0))).reshape(-1)[:1].reshape(())
    return call.spread(array_constant(value, call), tuple(call.integers(0) or ()))


@lowers("Range")
def arange(call: Call) -> Node:
    start, limit, step = (call.array(i).item() for i in range(3))
    dtype = call.array(0).dtype
    return array_constant(np.arange(start, limit, step, dtype=dtype), call)


@lowers("Trilu")
def triangle(call: Call) -> Node:
    """Zeros below, or above, a diagonal."""
    x, b = call.input(0), call.b
    offset = int(call.array(1)) if call.has(1) else 0
    rank, plane = x.tensor.rank, sizes(x)
    rows, columns = (
        b.iota(axis=axis, type=TensorType(I32, plane)) for axis in (rank - 2, rank - 1)
    )
    away = b.sub(columns, rows)
    limit = call.full(offset, away)
    kept = b.ge(away, limit) if call.attrs.get("upper", 1) else b.le(away, limit)
    return b.select(kept, x, call.full(0, x))
