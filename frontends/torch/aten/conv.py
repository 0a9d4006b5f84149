"""Lowerings of ATen convolution; checks of window sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.frontends.torch.aten.lowering import Context, NotLowered, lowers
from stack.frontends.torch.tensors.precision import conv_precision
from stack.ir.dim import Expr
from stack.ir.node import Node

# integers: windows are static, as `static` and `_window_sizes` check
Ints = Sequence[Any]


def each(values: Ints, rank: int) -> tuple[int, ...]:
    """Expands one number to all spatial axes; several numbers are unchanged."""
    values = tuple(values)
    return values * rank if len(values) == 1 else values


def static(x: Node) -> None:
    """Raise NotLowered if a size of `x` other than the first one is symbolic."""
    if any(isinstance(s, Expr) for s in x.shape[1:]):
        raise NotLowered(f"a window over the symbolic sizes of {x.type}")


def whole(size: Any) -> int:
    """Returns a size. Raises NotLowered unless it is a number."""
    if not isinstance(size, int):
        raise NotLowered(f"a window over the symbolic size {size}")
    return size


# ---- convolution


@lowers("convolution.default")
def _convolution(
    cx: Context, x: Node, weight: Node, bias: Node | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
) -> Node:  # fmt: skip
    batched = x.tensor.rank == weight.tensor.rank
    if not batched:
        x = cx.reshape(x, (1, *x.shape))
    rank = x.tensor.rank - 2
    stride, padding, dilation = (each(v, rank) for v in (stride, padding, dilation))
    if transposed:
        extra = each(output_padding, rank)
        y = transposed_conv(cx, x, weight, stride, padding, dilation, extra, groups)
    else:
        y = conv(cx, x, weight, stride, padding, padding, dilation=dilation, groups=groups)
    if bias is not None:
        y = cx.elementwise("add", y, cx.reshape(bias, (*bias.shape, *(1,) * rank)))
    return y if batched else cx.reshape(y, y.shape[1:])


def conv(
    cx: Context, x: Node, weight: Node, stride: Ints, low: Ints, high: Ints, *,
    spread: Ints | None = None, dilation: Ints, groups: int, **form: Any,
) -> Node:  # fmt: skip
    rank = x.tensor.rank - 2
    precision = conv_precision(cx.fakes[0]) if cx.fakes else None
    if precision is not None:
        form["precision"] = precision
    return cx.b.conv(
        x, weight, stride=tuple(stride), low=tuple(low), high=tuple(high),
        lhs_dilation=tuple(spread or (1,) * rank), rhs_dilation=tuple(dilation), groups=groups,
        **form,
    )  # fmt: skip


def transposed_conv(
    cx: Context, x: Node, weight: Node, stride: Ints, padding: Ints, dilation: Ints, extra: Ints,
    groups: int,
) -> Node:  # fmt: skip
    taps = weight.shape[2:]
    reach = [(k - 1) * d for k, d in zip(taps, dilation, strict=True)]
    low = [r - p for r, p in zip(reach, padding, strict=True)]
    high = [lo + e for lo, e in zip(low, extra, strict=True)]
    ones = (1,) * len(taps)
    return conv(
        cx, x, weight, ones, low, high, spread=stride, dilation=dilation, groups=groups,
        transposed=True,
    )  # fmt: skip
