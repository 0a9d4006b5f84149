"""Lowerings of primitives that move data without computing with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.frontends.jax.lax.lowering import NoLowering, Site, dtype_of, lower
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, less_equal, mul
from stack.ir.node import Node
from stack.ir.types import TensorType


@lower("reshape")
def _reshape(s: Site, x: Node, *_sizes: Node, dimensions: Any = None, **_: Any) -> Node:
    if dimensions is not None:
        x = s.transpose(x, dimensions)
    return s.reshape(x, s.type.shape)


@lower("squeeze", "expand_dims")
def _squeeze(s: Site, x: Node, **_: Any) -> Node:
    return s.reshape(x, s.type.shape)


@lower("broadcast_in_dim")
def _broadcast_in_dim(
    s: Site, x: Node, *_sizes: Node, broadcast_dimensions: Sequence[int], **_: Any
) -> Node:
    return broadcast(s, x, s.type, [int(a) for a in broadcast_dimensions])


def broadcast(s: Site, x: Node, type_: TensorType, axes: Sequence[int]) -> Node:
    """Broadcasts `x` along new axes, and along axes of size 1 that are larger in the result.

    Becomes a reshape if nothing is repeated.
    """
    target = [type_.shape[a] for a in axes]
    added = [d for i, d in enumerate(type_.shape) if i not in axes]
    if tuple(target) == x.shape and all(d == 1 for d in added):
        return s.reshape(x, type_.shape)
    kept = [i for i, d in enumerate(target) if d == x.shape[i]]
    x = s.reshape(x, [x.shape[i] for i in kept])
    return s.b.broadcast(x, axes=tuple(axes[i] for i in kept), type=type_)


@lower("broadcast_to")
def _broadcast_to(s: Site, x: Node, *_sizes: Node, **_: Any) -> Node:
    first = s.type.rank - x.tensor.rank
    return broadcast(s, x, s.type, range(first, s.type.rank))


@lower("transpose")
def _transpose(s: Site, x: Node, *, permutation: Sequence[int], **_: Any) -> Node:
    return s.transpose(x, permutation)


@lower("rev")
def _rev(s: Site, x: Node, *, dimensions: Sequence[int], **_: Any) -> Node:
    axes = tuple(sorted(int(a) for a in dimensions))
    return s.b.reverse(x, axes=axes) if axes else x


@lower("slice")
def _slice(
    s: Site, x: Node, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any
) -> Node:
    return s.slice(x, s.dims(start_indices), s.dims(limit_indices), strides)


def _cut(s: Site, x: Node, axis: int, start: Dim, size: Dim) -> Node:
    low: list[Dim] = [0] * x.tensor.rank
    high = list(x.shape)
    low[axis] = start
    high[axis] = add(start, size)
    return s.slice(x, low, high)


@lower("split")
def _split(s: Site, x: Node, *, sizes: Sequence[Any], axis: int, **_: Any) -> list[Node]:
    out: list[Node] = []
    start: Dim = 0
    for size in s.dims(sizes):
        out.append(_cut(s, x, axis, start, size))
        start = add(start, size)
    return out


@lower("unstack")
def _unstack(s: Site, x: Node, *, axis: int, **_: Any) -> list[Node]:
    return [s.reshape(_cut(s, x, axis, i, 1), t.shape) for i, t in enumerate(s.types)]


@lower("stack")
def _stack(s: Site, *args: Node, axis: int, **_: Any) -> Node:
    one = list(s.type.shape)
    one[axis] = 1
    return s.b.op("concat", [s.reshape(a, one) for a in args], {"axis": axis})


@lower("concatenate")
def _concatenate(s: Site, *args: Node, dimension: int, **_: Any) -> Node:
    return s.b.op("concat", args, {"axis": dimension}) if len(args) > 1 else next(iter(args))


@lower("tile")
def _tile(s: Site, x: Node, *, reps: Sequence[int], **_: Any) -> Node:
    repeated = [d for pair in zip(reps, x.shape, strict=True) for d in pair]
    axes = tuple(range(1, 2 * x.tensor.rank, 2))
    spread = s.b.broadcast(x, axes=axes, type=x.tensor.with_shape(s.dims(repeated)))
    return s.reshape(spread, [mul(r, d) for r, d in zip(reps, x.shape, strict=True)])


@lower("pad")
def _pad(s: Site, x: Node, value: Node, *, padding_config: Any, **_: Any) -> Node:
    low, high, interior = zip(*padding_config, strict=True) if padding_config else ((), (), ())
    return pad(s, x, value, s.dims(low), s.dims(high), s.dims(interior))


def pad(
    s: Site,
    x: Node,
    value: Node,
    low: Sequence[Dim],
    high: Sequence[Dim],
    interior: Sequence[Dim] | None = None,
) -> Node:
    """Pads as lax does: negative `low` and `high` crop."""
    gaps = tuple(interior or (0,) * len(low))
    if any(_negative(v) is None for v in (*low, *high)):
        raise NoLowering("padding of unknown sign")
    if any(v != 0 for v in gaps) or any(_negative(v) is False and v != 0 for v in (*low, *high)):
        x = s.b.pad(x, value, low=_positive(low), high=_positive(high), interior=gaps)
    start = [mul(lo, -1) if _negative(lo) else 0 for lo in low]
    limit = [add(d, hi) if _negative(hi) else d for d, hi in zip(x.shape, high, strict=True)]
    return s.slice(x, start, limit)


def _negative(size: Dim) -> bool | None:
    return less_equal(size, -1)


def _positive(sizes: Sequence[Dim]) -> tuple[Dim, ...]:
    return tuple(0 if _negative(d) else d for d in sizes)


@lower("iota")
def _iota(s: Site, *_sizes: Node, dtype: Any, dimension: int, **_: Any) -> Node:
    return s.b.iota(axis=dimension, type=s.type.with_dtype(dtype_of(dtype)))


@lower("iota_2x32_shape")
def _iota_2x32_shape(s: Site, **_: Any) -> tuple[Node, Node]:
    """Returns the row-major index of every element, as high and low 32-bit words."""
    size = s.type.size
    if not isinstance(size, int) or size >= 1 << 32:
        raise NoLowering("positions of more than 32 bits")
    flat = s.b.iota(axis=0, type=s.type.with_shape((size,)))
    return s.fill(0, s.type), s.reshape(flat, s.type.shape)


@lower("empty", "empty2", "zeros_like")
def _empty(s: Site, *_args: Node, **_: Any) -> Node:
    return s.fill(0, s.type)


@lower("full_like")
def _full_like(s: Site, *_args: Node, fill_value: Any, **_: Any) -> Node:
    return s.fill(fill_value, s.type)


@lower("platform_index")
def _platform_index(s: Site, *, platforms: Sequence[Any], **_: Any) -> Node:
    """Returns the number of the `lax.platform_dependent` branch for the CPU, or of the default."""
    for i, names in enumerate(platforms):
        if names is None or "cpu" in names:
            return constant(i, s.type.dtype)
    raise NoLowering("no branch for the CPU")
