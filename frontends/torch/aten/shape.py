"""Lowerings of ATen ops that move or create elements: views, joins, padding, creation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from stack.frontends.torch.aten.lowering import Context, NotLowered, axis_of, letters, lowers
from stack.ir.dim import INF, Dim, add, less_equal, maximum, minimum
from stack.ir.node import Node
from stack.ir.types import BOOL, F32, F64, I64, DType, TensorType

# ---- views


@lowers(
    "view.default", "reshape.default", "_unsafe_view.default", "squeeze.default", "squeeze.dim",
    "squeeze.dims", "unsqueeze.default", "view_copy.default", "_reshape_copy.default",
    "prims.reshape.default", "prims.squeeze.default", "squeeze_copy.dims", "unsqueeze_copy.default",
    "prims.collapse_view.default", "prims.split_dim.default", "_reshape_alias.default",
)  # fmt: skip
def _reshape(cx: Context, x: Node, *_: Any, **__: Any) -> Node:
    return cx.reshape(x, cx.want.shape)


@lowers("permute.default", "permute_copy.default", "prims.transpose.default")
def _permute(cx: Context, x: Node, dims: Sequence[int]) -> Node:
    return cx.transpose(x, [axis_of(d, x.tensor.rank) for d in dims])


@lowers("transpose.int", "transpose_copy.int")
def _transpose(cx: Context, x: Node, first: int, second: int) -> Node:
    rank = x.tensor.rank
    perm = list(range(rank))
    if rank:
        a, b = axis_of(first, rank), axis_of(second, rank)
        perm[a], perm[b] = perm[b], perm[a]
    return cx.transpose(x, perm)


@lowers("t.default", "t_copy.default")
def _t(cx: Context, x: Node) -> Node:
    return cx.transpose(x, list(range(x.tensor.rank))[::-1])


@lowers("expand.default", "expand_copy.default")
def _expand(cx: Context, x: Node, *_: Any, **__: Any) -> Node:
    return cx.broadcast(x, cx.want.shape)


@lowers("prims.broadcast_in_dim.default")
def _broadcast_in_dim(cx: Context, x: Node, shape: Sequence[Dim], axes: Sequence[int]) -> Node:
    kept = [i for i, a in enumerate(axes) if x.shape[i] == shape[a]]
    small = cx.reshape(x, [x.shape[i] for i in kept])
    return cx.b.broadcast(
        small, type=x.tensor.with_shape(tuple(shape)), axes=tuple(axes[i] for i in kept)
    )


def clip_bounds(start: Dim | None, end: Dim | None, size: Dim) -> tuple[Dim, Dim]:
    """Returns a slice's bounds by Python's rule. Raises NotLowered if a sign is unknown."""
    first = _clip(0 if start is None else start, size)
    is_open = end is None or (isinstance(end, int) and end >= INF)  # `x[i:]` has 2**63 - 1
    last = _clip(size if is_open or end is None else end, size)
    return first, (last if less_equal(first, last) else maximum(first, last))


def _clip(bound: Dim, size: Dim) -> Dim:
    if less_equal(0, bound) is None:
        raise NotLowered(f"a slice bound {bound} of unknown sign")
    if less_equal(0, bound) is False:
        bound = add(bound, size)
        if less_equal(0, bound) is not True:
            bound = maximum(bound, 0)
    return minimum(bound, size)


@lowers("slice.Tensor", "slice_copy.Tensor")
def _slice(
    cx: Context, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Node:
    axis = axis_of(dim, x.tensor.rank)
    first, last = clip_bounds(start, end, x.shape[axis])
    return cx.slice(x, axis, first, last, step)


@lowers("select.int", "select_copy.int")
def _select(cx: Context, x: Node, dim: int, index: Any) -> Node:
    axis = axis_of(dim, x.tensor.rank)
    if isinstance(index, Node) or less_equal(0, index) is None:
        raise NotLowered("select at a position that is not known")
    place = index if less_equal(0, index) else add(index, x.shape[axis])
    return cx.select_at(x, axis, place)


@lowers("split_with_sizes.default", "split_with_sizes_copy.default")
def _split_with_sizes(cx: Context, x: Node, sizes: Sequence[Dim], dim: int = 0) -> tuple[Node, ...]:
    axis = axis_of(dim, x.tensor.rank)
    parts: list[Node] = []
    start: Dim = 0
    for size in sizes:
        parts.append(cx.slice(x, axis, start, add(start, size)))
        start = add(start, size)
    return tuple(parts)


@lowers("split.Tensor", "split_copy.Tensor")
def _split(cx: Context, x: Node, size: Dim, dim: int = 0) -> tuple[Node, ...]:
    axis = axis_of(dim, x.tensor.rank)
    return _split_with_sizes(cx, x, [t.shape[axis] for t in cx.want], axis)


@lowers("unbind.int", "unbind_copy.int")
def _unbind(cx: Context, x: Node, dim: int = 0) -> tuple[Node, ...]:
    axis = axis_of(dim, x.tensor.rank)
    return tuple(cx.select_at(x, axis, i) for i in range(len(cx.want)))


@lowers("flip.default", "prims.rev.default")
def _flip(cx: Context, x: Node, dims: Sequence[int]) -> Node:
    axes = tuple(sorted(axis_of(d, x.tensor.rank) for d in dims))
    return cx.b.reverse(x, axes=axes) if axes and x.tensor.rank else x


@lowers("roll.default")
def _roll(cx: Context, x: Node, shifts: Any, dims: Any = ()) -> Node:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        flat = cx.reshape(x, [x.tensor.size])
        return cx.reshape(_roll(cx, flat, shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, x.tensor.rank)
        size = x.shape[axis]
        if not isinstance(size, int) or not isinstance(shift, int):
            raise NotLowered("roll of a symbolic size")
        cut = -shift % size if size else 0
        if cut:
            x = cx.concat([cx.slice(x, axis, cut, size), cx.slice(x, axis, 0, cut)], axis)
    return x


@lowers("cat.default", "prims.cat.default")
def _cat(cx: Context, parts: Sequence[Node], dim: int = 0) -> Node:
    want: TensorType = cx.want
    # legacy rule of torch: an empty vector can be concatenated with any shape
    kept = [p for p in parts if not (p.shape == (0,) and want.rank != 1)]
    if not kept:
        return cx.full(0, want)
    return cx.concat([cx.cast(p, want.dtype) for p in kept], axis_of(dim, want.rank))


@lowers("stack.default")
def _stack(cx: Context, parts: Sequence[Node], dim: int = 0) -> Node:
    axis = axis_of(dim, cx.want.rank)
    raised = [
        cx.reshape(cx.cast(p, cx.want.dtype), (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts
    ]
    return cx.concat(raised, axis)


@lowers("repeat.default")
def _repeat(cx: Context, x: Node, repeats: Sequence[Dim]) -> Node:
    lead = len(repeats) - x.tensor.rank
    sizes = (1,) * lead + x.shape
    shape: list[Dim] = []
    kept: list[int] = []
    for times, size in zip(repeats, sizes, strict=True):
        shape.extend((times, size))
        kept.append(len(shape) - 1)
    kept = kept[lead:]
    full = tuple(shape)
    if all(isinstance(r, int) and r == 1 for r in repeats):
        return cx.reshape(x, sizes)
    wide = cx.b.broadcast(x, type=x.tensor.with_shape(full), axes=tuple(kept))
    return cx.reshape(wide, cx.want.shape)


@lowers("diagonal.default", "diagonal_copy.default")
def _diagonal(cx: Context, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    a, b = axis_of(dim1, x.tensor.rank), axis_of(dim2, x.tensor.rank)
    rest = [i for i in range(x.tensor.rank) if i not in (a, b)]
    x = cx.transpose(x, [*rest, a, b])
    length: Dim = cx.want.shape[-1]
    rows, columns = x.shape[-2:]
    x = cx.slice(x, len(rest), max(-offset, 0), add(max(-offset, 0), length))
    x = cx.slice(x, len(rest) + 1, max(offset, 0), add(max(offset, 0), length))
    if length == 0:
        raise NotLowered("diagonal of an empty size")
    if not isinstance(length, int):  # a step of a slice is a number
        line = cx.iota([length], 0)
        outer = " ".join(letters(len(rest)))
        return cx.b.gather(x, line, line, rule=f"{outer} row! column!, k, k -> {outer} k")
    # the diagonal of a square: every (n + 1)-th element
    outer = x.shape[: len(rest)]
    flat = cx.reshape(x, [*outer, length * length])
    return cx.slice(flat, len(rest), 0, length * length, length + 1)


@lowers("unfold.default", "unfold_copy.default")
def _unfold(cx: Context, x: Node, dim: int, size: int, step: int) -> Node:
    if not x.tensor.rank:
        return cx.reshape(x, cx.want.shape)
    axis = axis_of(dim, x.tensor.rank)
    windows = cx.want.shape[axis]
    if size == 0 or not isinstance(windows, int):
        raise NotLowered("unfold of a symbolic or empty size")
    x = cx.b.unfold(x, axis=axis, window=(size,), stride=(step,), dilation=(1,))
    return cx.transpose(x, [i for i in range(x.tensor.rank) if i != axis + 1] + [axis + 1])


# ---- padding and parts


@lowers("constant_pad_nd.default")
def _constant_pad(cx: Context, x: Node, pad: Sequence[Dim], value: Any = 0) -> Node:
    low: list[Dim] = [0] * x.tensor.rank
    high: list[Dim] = [0] * x.tensor.rank
    for i in range(len(pad) // 2):
        low[-1 - i], high[-1 - i] = pad[2 * i], pad[2 * i + 1]
    return cx.pad(x, low, high, value)


@lowers(
    "replication_pad1d_backward.default",
    "replication_pad2d_backward.default",
    "replication_pad3d_backward.default",
)
def _replication_pad_backward(cx: Context, grad: Node, x: Node, pad: Sequence[Dim]) -> Node:
    """Adds the gradients of the copies of an edge to the gradient of the edge."""
    for i in range(len(pad) // 2):
        axis = x.tensor.rank - 1 - i
        size, low, high = x.shape[axis], pad[2 * i], pad[2 * i + 1]
        if not (isinstance(size, int) and isinstance(low, int) and isinstance(high, int)):
            raise NotLowered("replication padding of a symbolic size")
        zeros = [0] * x.tensor.rank
        cropped_low, cropped_high = list(zeros), list(zeros)
        cropped_low[axis], cropped_high[axis] = max(-low, 0), max(-high, 0)
        grad = cx.pad(grad, cropped_low, cropped_high, 0)
        start, limit = max(low, 0), grad.shape[axis]
        cuts = [0, start + 1, start + size - 1, limit] if size > 1 else [0, limit]
        parts = [cx.slice(grad, axis, *cut) for cut in pairwise(cuts)]
        for edge in {0, len(parts) - 1}:
            parts[edge] = cx.reduce("sum", parts[edge], [axis], keep=True)
        grad = cx.concat([p for p in parts if p.shape[axis] != 0], axis)
    return grad


@lowers("slice_scatter.default")
def _slice_scatter(
    cx: Context, x: Node, src: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Node:
    axis = axis_of(dim, x.tensor.rank)
    size = x.shape[axis]
    first, last = clip_bounds(start, end, size)
    src = cx.broadcast(cx.cast(src, x.dtype), cx.slice(x, axis, first, last, step).shape)
    if src.shape == x.shape:
        return src
    if step == 1:
        parts = [cx.slice(x, axis, 0, first), src, cx.slice(x, axis, last, size)]
        return cx.concat([p for p in parts if p.shape[axis] != 0], axis)
    place = cx.elementwise("add", cx.elementwise("mul", cx.iota([src.shape[axis]], 0), step), first)
    axes = [f"a{i}" for i in range(x.tensor.rank)]
    into = " ".join(a + "!" if i == axis else a for i, a in enumerate(axes))
    source = " ".join("k" if i == axis else a for i, a in enumerate(axes))
    return cx.b.scatter(x, place, src, rule=f"{into}, k, {source} -> {into}", kind="set")


@lowers("select_scatter.default")
def _select_scatter(cx: Context, x: Node, src: Node, dim: int, index: Dim) -> Node:
    axis = axis_of(dim, x.tensor.rank)
    place = index if less_equal(0, index) else add(index, x.shape[axis])
    src = cx.reshape(src, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _slice_scatter(cx, x, src, axis, place, add(place, 1))


# ---- creation


@lowers("full.default", "prims.full.default")
def _full(cx: Context, size: Sequence[Dim], value: Any, dtype: DType | None = None) -> Node:
    return cx.full(value, cx.want)


@lowers("full_like.default", "new_full.default")
def _full_like(cx: Context, x: Node, *args: Any, dtype: DType | None = None, **_: Any) -> Node:
    return cx.full(args[-1], cx.want)


@lowers(
    "zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format",
    "empty_like.default", "new_empty.default", "empty_strided.default", "new_empty_strided.default",
    "empty_permuted.default", "prims.empty_strided.default", "prims.empty_permuted.default",
    "_efficientzerotensor.default",
)  # fmt: skip
def _zeros(cx: Context, *_: Any, **__: Any) -> Node:
    return cx.full(0, cx.want)


@lowers("ones.default", "ones_like.default", "new_ones.default")
def _ones(cx: Context, *_: Any, **__: Any) -> Node:
    return cx.full(1, cx.want)


@lowers("fill.Scalar", "fill.Tensor")
def _fill(cx: Context, x: Node, value: Any) -> Node:
    return cx.full(value, cx.want)


def _progression(cx: Context, count: Dim, start: Any, step: Any, dtype: DType) -> Node:
    if dtype.is_integer:  # torch truncates first; the count uses the fractions
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    if isinstance(start, float) or isinstance(step, float):
        kind = F64
    else:
        kind = I64
    line = cx.iota([count], 0, I64)
    values = cx.cast(line, kind)
    if step != 1:
        values = cx.elementwise("mul", values, step, dtype=kind)
    if start != 0:
        values = cx.elementwise("add", values, start, dtype=kind)
    return cx.cast(values, dtype)


@lowers("arange.start_step")
def _arange(cx: Context, start: Any, end: Any, step: Any = 1, dtype: DType | None = None) -> Node:
    return _progression(cx, cx.want.shape[0], start, step, cx.want.dtype)


@lowers("arange.default")
def _arange_end(cx: Context, end: Any, dtype: DType | None = None) -> Node:
    return _progression(cx, cx.want.shape[0], 0, 1, cx.want.dtype)


@lowers("arange.start")
def _arange_start(cx: Context, start: Any, end: Any, dtype: DType | None = None) -> Node:
    return _progression(cx, cx.want.shape[0], start, 1, cx.want.dtype)


@lowers("prims.iota.default")
def _iota(
    cx: Context, length: Dim, *, start: Any, step: Any, dtype: DType, requires_grad: bool = False
) -> Node:
    return _progression(cx, length, start, step, dtype)


@lowers("eye.default", "eye.m")
def _eye(cx: Context, *_: Any, **__: Any) -> Node:
    shape = cx.want.shape
    return cx.cast(cx.elementwise("eq", cx.iota(shape, 0), cx.iota(shape, 1)), cx.want.dtype)


def _triangle(name: str, op: str) -> None:
    @lowers(f"{name}.default")
    def lower(cx: Context, x: Node, diagonal: int = 0) -> Node:
        shape = x.shape[-2:]
        rows, columns = cx.iota(shape, 0), cx.iota(shape, 1)
        rows = cx.elementwise("add", rows, diagonal) if diagonal != 0 else rows
        inside = cx.elementwise(op, columns, rows)
        if x.tensor.rank > 2:
            inside = cx.broadcast(inside, x.shape)
        return cx.select(inside, x, False if x.dtype is BOOL else 0, x.dtype)


_triangle("triu", "ge")
_triangle("tril", "le")


@lowers("linspace.default")
def _linspace(cx: Context, start: Any, end: Any, steps: int, dtype: DType | None = None) -> Node:
    kind: DType = cx.want.dtype
    if kind.kind not in "f" or not isinstance(steps, int):
        raise NotLowered("linspace of integers")
    if steps <= 1:
        return cx.full(float(start), cx.want)
    count = cx.iota([steps], 0)
    step = (end - start) / (steps - 1)
    # from both ends, as torch does, so that both ends are exact
    wide = F32 if kind.bits == 16 else kind
    up = cx.elementwise("add", cx.elementwise("mul", count, step, dtype=wide), start, dtype=wide)
    rest = cx.elementwise("sub", steps - 1, count)
    down = cx.elementwise("sub", end, cx.elementwise("mul", rest, step, dtype=wide), dtype=wide)
    return cx.cast(cx.select(cx.elementwise("lt", count, steps // 2), up, down), kind)
