"""Lowerings of ONNX ops that multiply, and of those over windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stack.frontends.files.lowering_table import sizes
from stack.frontends.files.onnx.lowering import Call, lowers
from stack.ir.node import Node


@lowers("MatMul")
def matmul(call: Call) -> Node:
    """As NumPy's: batch axes broadcast, vectors have no second axis."""
    x, y = call.input(0), call.input(1)
    is_row, is_column = x.tensor.rank == 1, y.tensor.rank == 1
    x = call.reshape(x, (1, *sizes(x))) if is_row else x
    y = call.reshape(y, (*sizes(y), 1)) if is_column else y
    batch = np.broadcast_shapes(sizes(x)[:-2], sizes(y)[:-2])
    names = [f"b{i}" for i in range(len(batch))]
    if y.tensor.rank == 2:  # rows of all batches meet one matrix
        names = [f"b{i}" for i in range(x.tensor.rank - 2)]
        rule = f"{' '.join(names)} m k, k n -> {' '.join(names)} m n"
    else:
        x = call.spread(x, (*batch, *sizes(x)[-2:]))
        y = call.spread(y, (*batch, *sizes(y)[-2:]))
        ahead = " ".join(names)
        rule = f"{ahead} m k, {ahead} k n -> {ahead} m n"
    made = call.b.dot(x, y, rule=rule)
    own = [*sizes(made)]
    if is_column:
        del own[-1]
    if is_row:
        del own[-1 if is_column else -2]
    return call.reshape(made, own)


@lowers("Gemm")
def gemm(call: Call) -> Node:
    """alpha * a @ b + beta * c, with either factor transposed."""
    a, b, at = call.input(0), call.input(1), call.attrs
    left = "k m" if at.get("transA") else "m k"
    right = "n k" if at.get("transB") else "k n"
    made = call.b.dot(a, b, rule=f"{left}, {right} -> m n")
    if at.get("alpha", 1.0) != 1.0:
        made = call.b.mul(made, at["alpha"])
    if not call.has(2):
        return made
    c = call.input(2)
    if at.get("beta", 1.0) != 1.0:
        c = call.b.mul(c, at["beta"])
    return call.b.add(made, call.spread(c, sizes(made)))


@lowers("Conv")
def conv(call: Call) -> Node:
    """A convolution, and a bias for each channel of the result."""
    x, w, at = call.input(0), call.input(1), call.attrs
    rank = x.tensor.rank - 2
    stride = tuple(at.get("strides", [1] * rank))
    dilation = tuple(at.get("dilations", [1] * rank))
    low, high = _padding(call, sizes(x)[2:], sizes(w)[2:], stride, dilation)
    made = call.b.conv(
        x, w, stride=stride, low=low, high=high, lhs_dilation=(1,) * rank, rhs_dilation=dilation,
        groups=int(at.get("group", 1)),
    )  # fmt: skip
    return _plus_channels(call, made, call.input(2)) if call.has(2) else made


def _plus_channels(call: Call, x: Node, bias: Node) -> Node:
    return call.b.add(x, _of_channels(call, bias, x))


def _of_channels(call: Call, value: Node, like: Node) -> Node:
    """Broadcasts a value of each channel, which is axis 1."""
    wide = call.reshape(value, (*sizes(value), *(1,) * (like.tensor.rank - 2)))
    return call.spread(wide, sizes(like))


def _padding(
    call: Call,
    extents: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the padding at both ends of each axis, given or by attribute `auto_pad`."""
    auto = call.attrs.get("auto_pad", "NOTSET")
    rank = len(window)
    if auto in ("NOTSET", "VALID"):
        pads = call.attrs.get("pads", [0] * 2 * rank) if auto == "NOTSET" else [0] * 2 * rank
        return tuple(pads[:rank]), tuple(pads[rank:])
    low, high = [0] * rank, [0] * rank
    for i in range(rank):
        span = (window[i] - 1) * dilation[i] + 1
        total = max((-(-extents[i] // stride[i]) - 1) * stride[i] + span - extents[i], 0)
        less, more = total // 2, total - total // 2
        low[i], high[i] = (less, more) if auto == "SAME_UPPER" else (more, less)
    return tuple(low), tuple(high)


@lowers("MaxPool", "AveragePool")
def pool(call: Call) -> Node:
    """Reduces windows; padding counts for an average only with `count_include_pad`."""
    x, at, b = call.input(0), call.attrs, call.b
    window = tuple(at["kernel_shape"])
    rank = len(window)
    stride = tuple(at.get("strides", [1] * rank))
    dilation = tuple(at.get("dilations", [1] * rank))
    if call.outputs > 1:
        raise call.fail("indices of the maximum are not imported")
    low, high = _padding(call, sizes(x)[2:], window, stride, dilation)
    own_high = high
    if at.get("ceil_mode"):
        high = tuple(_whole(*v) for v in zip(sizes(x)[2:], window, stride, dilation, low, high))
    is_max = call.op == "MaxPool"
    made = _windows(call, x, -np.inf if is_max else 0.0, window, stride, dilation, low, high)
    if is_max:
        return b.reduce(made, kind="max", axes=tuple(range(2 + rank, 2 + 2 * rank)))
    total = b.reduce(made, kind="sum", axes=tuple(range(2 + rank, 2 + 2 * rank)))
    if not any((*low, *high)):
        return b.div(total, float(np.prod(window)))
    ones = call.full(1, x)
    if at.get("count_include_pad"):  # but not what `ceil_mode` adds
        zero = (0, 0)
        ones = b.pad(
            ones, 1.0, low=(*zero, *low), high=(*zero, *own_high), interior=(0,) * (2 + rank)
        )
        high = tuple(h - o for h, o in zip(high, own_high, strict=True))
        low = (0,) * rank
    counted = _windows(call, ones, 0.0, window, stride, dilation, low, high)
    count = b.reduce(counted, kind="sum", axes=tuple(range(2 + rank, 2 + 2 * rank)))
    return b.div(total, count)


def _whole(extent: int, window: int, stride: int, dilation: int, low: int, high: int) -> int:
    """Returns the padding at the end with which a last partial window is whole."""
    span = (window - 1) * dilation + 1
    steps = -(-(extent + low + high - span) // stride)
    if steps * stride >= extent + low:  # a window may not begin in the padding at the end
        steps -= 1
    return max(high, steps * stride + span - extent - low)


def _windows(
    call: Call,
    x: Node,
    value: float,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    low: tuple[int, ...],
    high: tuple[int, ...],
) -> Node:
    """Returns the windows of all images and channels; their elements are the last axes."""
    if any((*low, *high)):
        widths = {"low": (0, 0, *low), "high": (0, 0, *high)}
        x = call.b.pad(x, value, **widths, interior=(0,) * x.tensor.rank)
    made = call.b.unfold(x, axis=2, window=window, stride=stride, dilation=dilation)
    return made


@lowers("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Node:
    x = call.input(0)
    axes = tuple(range(2, x.tensor.rank))
    kind = "max" if call.op == "GlobalMaxPool" else "sum"
    made = call.b.reduce(x, kind=kind, axes=axes)
    if kind == "sum":
        made = call.b.div(made, float(np.prod(sizes(x)[2:])))
    return call.reshape(made, (*sizes(x)[:2], *(1,) * len(axes)))


@lowers("BatchNormalization")
def batch_norm(call: Call) -> Node:
    """Inference: scale and shift by the stored statistics."""
    x, b = call.input(0), call.b
    if call.attrs.get("training_mode"):
        raise call.fail("it is in training mode; export the model in evaluation mode")
    scale, bias, mean, variance = (call.input(i) for i in range(1, 5))
    inverse = b.rsqrt(b.add(variance, float(call.attrs.get("epsilon", 1e-5))))
    factor = b.mul(scale, inverse)
    moved = b.sub(x, _of_channels(call, mean, x))
    return _plus_channels(call, b.mul(moved, _of_channels(call, factor, x)), bias)


@lowers("InstanceNormalization")
def instance_norm(call: Call) -> Node:
    """Zero mean and unit variance for each image and channel, then scale and shift."""
    x, b = call.input(0), call.b
    axes, count = tuple(range(2, x.tensor.rank)), float(np.prod(sizes(x)[2:]))

    def mean(value: Node) -> Node:
        total = b.div(b.reduce(value, kind="sum", axes=axes), count)
        return b.broadcast(total, axes=(0, 1), type=x.type)

    moved = b.sub(x, mean(x))
    variance = mean(b.mul(moved, moved))
    scaled = b.mul(moved, b.rsqrt(b.add(variance, float(call.attrs.get("epsilon", 1e-5)))))
    return _plus_channels(call, b.mul(scaled, _of_channels(call, call.input(1), x)), call.input(2))
