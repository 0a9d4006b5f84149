"""Lowerings of ATen ops that read or write at indices given as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.frontends.torch.aten.bounds import expect, in_range
from stack.frontends.torch.aten.lowering import Context, NotLowered, axis_of, letters, lowers
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.types import BOOL, I64


def _rule(inputs: Sequence[Sequence[str]], output: Sequence[str]) -> str:
    return f"{', '.join(' '.join(i) for i in inputs)} -> {' '.join(output)}"


@lowers("embedding.default")
def _embedding(
    cx: Context, weight: Node, index: Node, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Node:  # fmt: skip
    index = in_range(cx, index, weight.shape[0], "embedding")
    own = [f"i{k}" for k in range(index.tensor.rank)]
    return cx.b.gather(weight, index, rule=_rule([["v!", "d"], own], [*own, "d"]))


@lowers("index_select.default")
def _index_select(cx: Context, x: Node, dim: int, index: Node) -> Node:
    if not x.tensor.rank:
        return x
    axis = axis_of(dim, x.tensor.rank)
    index = cx.reshape(in_range(cx, index, x.shape[axis], "index_select"), [index.tensor.size])
    axes = letters(x.tensor.rank)
    source = [a + "!" if i == axis else a for i, a in enumerate(axes)]
    out = ["k" if i == axis else a for i, a in enumerate(axes)]
    return cx.b.gather(x, index, rule=_rule([source, ["k"]], out))


@lowers("gather.default")
def _gather(cx: Context, x: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    if not x.tensor.rank:
        return cx.broadcast(x, index.shape)
    if not index.tensor.rank:
        index = cx.reshape(index, [1])
    if index.tensor.size == 0:
        return cx.full(0, cx.want)
    axis = axis_of(dim, x.tensor.rank)
    index = in_range(cx, index, x.shape[axis], "gather")
    for other, (size, wanted) in enumerate(zip(x.shape, index.shape, strict=True)):
        if other != axis and size != wanted:
            x = cx.slice(x, other, 0, wanted)
    axes = letters(x.tensor.rank)
    source = [a + "!" if i == axis else a for i, a in enumerate(axes)]
    out = [f"{a}k" if i == axis else a for i, a in enumerate(axes)]
    return cx.reshape(cx.b.gather(x, index, rule=_rule([source, out], out)), cx.want.shape)


@lowers("take.default")
def _take(cx: Context, x: Node, index: Node) -> Node:
    flat = cx.reshape(x, [x.tensor.size])
    index = in_range(cx, index, x.tensor.size, "take", wraps=True)
    own = [f"i{k}" for k in range(index.tensor.rank)]
    return cx.b.gather(flat, index, rule=_rule([["n!"], own], own))


# ---- advanced indexing


class _Places:
    """The index tensors of an access such as `x[i, :, j]`, checked to be in range.

    Their axes are named after the axes of the shape that they broadcast to (`frame`).
    """

    def __init__(self, cx: Context, x: Node, indices: Sequence[Node | None], what: str) -> None:
        self.at = [i for i, v in enumerate(indices) if v is not None]
        given = [v for v in indices if v is not None]
        if any(v.dtype is BOOL or v.dtype.name == "u8" for v in given):
            raise NotLowered("a mask as an index: the size of the result depends on data")
        self.shape = cx.shape_of(*given)
        rank = len(self.shape)
        self.frame = [f"i{k}" for k in range(rank)]
        self.nodes: list[Node] = []
        self.own: list[list[str]] = []
        for axis, index in zip(self.at, given, strict=True):
            index = in_range(cx, cx.cast(index, I64), x.shape[axis], what, wraps=True)
            lead = rank - index.tensor.rank
            kept = [k for k, s in enumerate(index.shape) if s == self.shape[lead + k]]
            self.nodes.append(cx.reshape(index, [index.shape[k] for k in kept]))
            self.own.append([self.frame[lead + k] for k in kept])
        axes = letters(x.tensor.rank)
        self.source = [a + "!" if i in self.at else a for i, a in enumerate(axes)]
        rest = [(i, a) for i, a in enumerate(axes) if i not in self.at]
        together = self.at == list(range(self.at[0], self.at[0] + len(self.at)))
        before = [a for i, a in rest if together and i < self.at[0]]
        after = [a for i, a in rest if not (together and i < self.at[0])]
        # the axes of adjacent indices stay in place, those of others go first
        self.out = [*before, *self.frame, *after]
        sizes = dict(zip(axes, x.shape, strict=True)) | dict(zip(self.frame, self.shape))
        self.out_shape = tuple(sizes[a] for a in self.out)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def _index(cx: Context, x: Node, indices: Sequence[Node | None]) -> Node:
    if all(i is None for i in indices):
        return x
    places = _Places(cx, x, indices, "index")
    return cx.b.gather(x, *places.nodes, rule=_rule([places.source, *places.own], places.out))


@lowers("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def _index_put(
    cx: Context, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False,
    unsafe: bool = False,
) -> Node:  # fmt: skip
    masks = [i for i in indices if i is not None and i.dtype is BOOL]
    if masks:
        return _masked_put(cx, x, indices, values, accumulate)
    places = _Places(cx, x, indices, "index_put")
    updates = cx.broadcast(cx.cast(values, x.dtype), places.out_shape)
    rule = _rule([places.source, *places.own, places.out], places.source)
    return _scatter(cx, x, places.nodes, updates, rule, "add" if accumulate else "set")


def _scatter(
    cx: Context, x: Node, places: Sequence[Node], updates: Node, rule: str, kind: str
) -> Node:
    if x.dtype is BOOL and kind == "add":
        kind = "max"
    return cx.b.scatter(x, *places, updates, rule=rule, kind=kind)


def _masked_put(
    cx: Context, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool
) -> Node:
    """Lowers `x[mask] = scalar` to a select; other values need the number of true elements."""
    if len(indices) != 1 or indices[0] is None or values.tensor.size != 1:
        raise NotLowered("index_put through a mask with more than one value")
    mask = indices[0]
    rank = mask.tensor.rank
    wide = cx.reshape(mask, (*mask.shape, *(1,) * (x.tensor.rank - rank)))
    value = cx.reshape(cx.cast(values, x.dtype), ())
    new = cx.elementwise("add", x, value) if accumulate else value
    return cx.select(cx.broadcast(wide, x.shape), new, x, x.dtype)


# ---- scatter along one axis


def _scatter_axis(
    cx: Context, x: Node, dim: int, index: Node, source: Node | float, kind: str
) -> Node:
    if index.tensor.size == 0:
        return x
    scalar = not x.tensor.rank
    if scalar:
        x = cx.reshape(x, [1])
    if not index.tensor.rank:
        index = cx.reshape(index, [1])
    if isinstance(source, Node) and not source.tensor.rank and index.tensor.rank:
        source = cx.reshape(source, [1] * index.tensor.rank)
    axis = axis_of(dim, x.tensor.rank)
    index = in_range(cx, index, x.shape[axis], "scatter")
    updates = _updates(cx, x, index, source)
    axes = letters(x.tensor.rank)
    partial = [i for i, s in enumerate(x.shape) if i != axis and s != index.shape[i]]
    moved = [f"{a}k" if i == axis or i in partial else a for i, a in enumerate(axes)]
    into = [a + "!" if i == axis or i in partial else a for i, a in enumerate(axes)]
    places: list[Node] = []
    operands: list[list[str]] = []
    for i in sorted([axis, *partial]):
        places.append(index if i == axis else cx.iota([index.shape[i]], 0))
        operands.append(moved if i == axis else [moved[i]])
    rule = _rule([into, *operands, moved], into)
    out = _scatter(cx, x, places, updates, rule, kind)
    return cx.reshape(out, ()) if scalar else out


def _updates(cx: Context, x: Node, index: Node, source: Node | float) -> Node:
    if not isinstance(source, Node):
        return cx.full(source, x.tensor.with_shape(index.shape))
    for axis, wanted in enumerate(index.shape):
        source = cx.slice(source, axis, 0, wanted)
    return source


@lowers("scatter.src", "scatter.value")
def _scatter_set(cx: Context, x: Node, dim: int, index: Node, src: Any) -> Node:
    return _scatter_axis(cx, x, dim, index, src, "set")


@lowers("scatter.reduce", "scatter.value_reduce")
def _scatter_op(cx: Context, x: Node, dim: int, index: Node, src: Any, *, reduce: str) -> Node:
    kind = "add" if reduce == "add" else "mul"
    return _scatter_axis(cx, x, dim, index, src, kind)


@lowers("scatter_add.default")
def _scatter_add(cx: Context, x: Node, dim: int, index: Node, src: Node) -> Node:
    return _scatter_axis(cx, x, dim, index, src, "add")


_REDUCE = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@lowers("scatter_reduce.two")
def _scatter_reduce(
    cx: Context, x: Node, dim: int, index: Node, src: Node, reduce: str, *,
    include_self: bool = True,
) -> Node:  # fmt: skip
    kind = "add" if reduce == "mean" else _REDUCE[reduce]
    start = x if include_self else _without_self(cx, x, dim, index, kind)
    total = _scatter_axis(cx, start, dim, index, src, kind)
    if reduce != "mean":
        return total
    base = cx.full(1 if include_self else 0, x.tensor)
    ones = cx.full(1, x.tensor.with_shape(index.shape))
    count = _scatter_axis(cx, base, dim, index, ones, "add")
    count = cx.elementwise("max", count, 1)
    if x.dtype.is_integer:
        raise NotLowered("a mean of integers rounds down")
    return cx.elementwise("div", total, count)


def _without_self(cx: Context, x: Node, dim: int, index: Node, kind: str) -> Node:
    """Returns `x` with the elements that a scatter writes set to its reduction's identity.

    The result of the scatter then does not depend on them (`include_self=False`).
    """
    unit = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}[kind]
    return _scatter_axis(cx, x, dim, index, identity(unit, x.dtype), "set")


@lowers("index_add.default", "index_copy.default")
def _index_add(
    cx: Context, x: Node, dim: int, index: Node, source: Node, *, alpha: Any = 1
) -> Node:
    scalar = not x.tensor.rank
    if scalar:
        x = cx.reshape(x, [1])
        source = cx.reshape(source, [1])
    axis = axis_of(dim, x.tensor.rank)
    index = cx.reshape(in_range(cx, index, x.shape[axis], "index_add"), [index.tensor.size])
    if alpha != 1:
        source = cx.elementwise("mul", source, alpha, dtype=x.dtype)
    axes = letters(x.tensor.rank)
    into = [a + "!" if i == axis else a for i, a in enumerate(axes)]
    given = ["k" if i == axis else a for i, a in enumerate(axes)]
    kind = "add" if cx.name.startswith("aten.index_add") else "set"
    out = _scatter(cx, x, [index], source, _rule([into, ["k"], given], into), kind)
    return cx.reshape(out, ()) if scalar else out


@lowers("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(cx: Context, x: Node, dim: int, index: Node, value: Any) -> Node:
    scalar = not x.tensor.rank
    if scalar:
        x = cx.reshape(x, [1])
    axis = axis_of(dim, x.tensor.rank)
    count = index.tensor.size
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    source = cx.full(value, x.tensor.with_shape(shape))
    index = cx.reshape(in_range(cx, index, x.shape[axis], "index_fill", wraps=True), [count])
    axes = letters(x.tensor.rank)
    into = [a + "!" if i == axis else a for i, a in enumerate(axes)]
    given = ["k" if i == axis else a for i, a in enumerate(axes)]
    out = _scatter(cx, x, [index], source, _rule([into, ["k"], given], into), "set")
    return cx.reshape(out, ()) if scalar else out


@lowers("index_reduce.default")
def _index_reduce(
    cx: Context, x: Node, dim: int, index: Node, source: Node, reduce: str, *,
    include_self: bool = True,
) -> Node:  # fmt: skip
    if not x.tensor.rank:
        x, source = cx.reshape(x, [1]), cx.reshape(source, [1])
        options = {"include_self": include_self}
        return cx.reshape(_index_reduce(cx, x, 0, index, source, reduce, **options), ())
    axis = axis_of(dim, x.tensor.rank)
    view = [index.tensor.size if i == axis else 1 for i in range(x.tensor.rank)]
    wide = cx.broadcast(cx.reshape(index, view), source.shape)
    kind = {"prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}[reduce]
    return _scatter_reduce(cx, x, dim, wide, source, kind, include_self=include_self)


@lowers("put.default")
def _put(cx: Context, x: Node, index: Node, source: Node, accumulate: bool = False) -> Node:
    flat = cx.reshape(x, [x.tensor.size])
    index = cx.reshape(index, [index.tensor.size])
    index = in_range(cx, index, x.tensor.size, "put", wraps=True)
    updates = cx.reshape(source, [source.tensor.size])
    kind = "add" if accumulate else "set"
    return cx.reshape(_scatter(cx, flat, [index], updates, "n!, k, k -> n!", kind), x.shape)


@lowers("masked_scatter.default")
def _masked_scatter(cx: Context, x: Node, mask: Node, source: Node) -> Node:
    """Fills true elements with the elements of `source` in order, found by a running count."""
    mask = cx.reshape(cx.broadcast(mask, x.shape), [x.tensor.size])
    if not (isinstance(x.tensor.size, int) and isinstance(source.tensor.size, int)):
        raise NotLowered("masked_scatter of symbolic sizes")
    if not x.tensor.size:
        return x
    count = cx.b.scan(cx.cast(mask, I64), kind="sum", axis=0, reverse=False)
    if source.tensor.size < x.tensor.size:
        enough = cx.elementwise("le", count, source.tensor.size)
        expect(cx, enough, "Number of elements of source < number of ones in mask")
    if not source.tensor.size:
        return x
    place = cx.elementwise("max", cx.elementwise("sub", count, 1), 0)
    place = cx.elementwise("min", place, source.tensor.size - 1)
    flat = cx.reshape(source, [source.tensor.size])
    taken = cx.b.gather(flat, place, rule="n!, k -> k")
    return cx.reshape(cx.select(mask, taken, cx.reshape(x, [x.tensor.size])), x.shape)


@lowers("diagonal_scatter.default")
def _diagonal_scatter(
    cx: Context, x: Node, source: Node, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Node:
    rank = x.tensor.rank
    a, b = axis_of(dim1, rank), axis_of(dim2, rank)
    axes = letters(rank)
    into = [v + "!" if i in (a, b) else v for i, v in enumerate(axes)]
    given = [*(v for i, v in enumerate(axes) if i not in (a, b)), "k"]
    line = cx.iota([source.shape[-1]], 0)
    rows = cx.elementwise("add", line, max(-offset, 0))
    columns = cx.elementwise("add", line, max(offset, 0))
    places = [rows, columns] if a < b else [columns, rows]
    return _scatter(cx, x, places, source, _rule([into, ["k"], ["k"], given], into), "set")
