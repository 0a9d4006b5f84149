"""Lowerings of ATen matmuls, normalizations and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stack.frontends.torch.aten.bounds import expect
from stack.frontends.torch.aten.lowering import (
    Context,
    NotLowered,
    letters,
    lowers,
    need_float,
    wide,
)
from stack.frontends.torch.aten.reduce import mean, variance
from stack.ir.axes import parse_rule
from stack.ir.dim import Dim, product
from stack.ir.node import Node
from stack.ir.types import I64, DType, TensorType

# ---- matmuls

# Torch computes batched matmuls with fewer multiplications by its own loops, not with BLAS.
_LOOPED = 400


def _unmerged(cx: Context, x: Node, kept: int) -> Node | None:
    """Returns `x` with leading axes restored that a reshape had merged into one; else None.

    The last `kept` axes are unchanged. Torch flattens `[b, s, k]` to `[b * s, k]` for its matmuls;
    the rule of a dot does not need that.
    """
    if x.op != "reshape" or x.tensor.rank != kept + 1:
        return None
    source = x.args[0]
    tail = x.shape[1:]
    for split in range(2, source.tensor.rank + 1):
        lead, rest = source.shape[:split], source.shape[split:]
        if product(lead) == x.shape[0] and (rest == tail or product(rest) == product(tail)):
            return cx.reshape(source, (*lead, *tail))
    return None


def _dot(cx: Context, a: Node, b: Node, rule: str, out: DType) -> Node:
    """Computes a dot in the operands' type; by the IR's rule, 16-bit floats accumulate in f32."""
    return cx.cast(_wide_dot(cx, a, b, rule, a.dtype), out)


@lowers("mm.default", "_int_mm.default")
def _mm(cx: Context, x: Node, y: Node) -> Node:
    return matmul(cx, x, y, cx.want.dtype)


def matmul(cx: Context, x: Node, y: Node, out: DType) -> Node:
    """Computes `[m, k] @ [k, n]`, with axes that were merged into m restored."""
    _same_dtype(x, y)
    x, y = (cx.cast(v, out) if out.bits > v.dtype.bits else v for v in (x, y))
    source = _unmerged(cx, x, 1) or x
    axes = " ".join(letters(source.tensor.rank - 1))
    made = _dot(cx, source, y, f"{axes} k, k n -> {axes} n", out)
    return cx.reshape(made, (x.shape[0], y.shape[1]))


def _same_dtype(x: Node, y: Node) -> None:
    """Raise eager's error for two element types, which tracing accepts."""
    if x.dtype != y.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, got {x.dtype} and {y.dtype}")


@lowers("bmm.default", "bmm.dtype")
def _bmm(cx: Context, x: Node, y: Node, out_dtype: DType | None = None) -> Node:
    _same_dtype(x, y)
    left, right, rule = _batched(cx, x, y)
    made = _wide_dot(cx, left, right, rule, out_dtype or x.dtype)
    return cx.reshape(made, (x.shape[0], x.shape[1], y.shape[2]))


def _batched(cx: Context, x: Node, y: Node) -> tuple[Node, Node, str]:
    """Returns the operands of a batched matmul with merged batch axes restored, and the rule."""
    left, right = _unmerged(cx, x, 2), _unmerged(cx, y, 2)
    model = left or right
    lead = model.shape[:-2] if model is not None else x.shape[:1]
    axes = " ".join(letters(len(lead)))
    rule = f"{axes} m k, {axes} k n -> {axes} m n"
    return cx.reshape(x, (*lead, *x.shape[1:])), cx.reshape(y, (*lead, *y.shape[1:])), rule


@lowers("dot.default", "vdot.default")
def _vector_dot(cx: Context, x: Node, y: Node) -> Node:
    return _dot(cx, x, y, "k, k ->", cx.want.dtype)


@lowers("mv.default")
def _mv(cx: Context, x: Node, y: Node) -> Node:
    return _dot(cx, x, y, "m k, k -> m", cx.want.dtype)


def _plus(cx: Context, bias: Node, made: Node, beta: Any, alpha: Any, drops: bool = True) -> Node:
    """Computes `beta * bias + alpha * made`, where `made` is a matmul.

    If `made` is a reshape of the product, the reshape is applied after the addition.

    Args:
        drops: if true, a product times 0 is 0 even for nan, as in BLAS. Torch computes 16-bit
            products by another library, which keeps nan.
    """
    out: DType = cx.want.dtype
    if alpha == 0 and drops and out.bits != 16:
        made = cx.full(0, made.tensor)
    elif alpha != 1:
        made = cx.elementwise("mul", made, alpha, dtype=made.dtype)
    if beta == 0:
        return cx.cast(made, out)
    if beta != 1:
        bias = cx.elementwise("mul", bias, beta, dtype=bias.dtype)
    bias = cx.cast(bias, made.dtype)
    if made.op == "reshape" and bias.tensor.rank <= 1:
        summed = cx.cast(cx.elementwise("add", made.args[0], bias), out)
        return cx.reshape(summed, made.shape)
    return cx.cast(cx.elementwise("add", made, bias), out)


@lowers("addmm.default")
def _addmm(cx: Context, bias: Node, x: Node, y: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    _same_dtype(x, y)
    kind = wide(x.dtype)
    if kind is x.dtype:
        return _plus(cx, bias, matmul(cx, x, y, kind), beta, alpha)
    # torch rounds only the sum of product and bias
    source = _unmerged(cx, x, 1) or x
    axes = " ".join(letters(source.tensor.rank - 1))
    made = _wide_dot(cx, source, y, f"{axes} k, k n -> {axes} n", kind)
    return _plus(cx, bias, cx.reshape(made, (x.shape[0], y.shape[1])), beta, alpha)


def _wide_dot(cx: Context, x: Node, y: Node, rule: str, kind: DType) -> Node:
    if x.dtype.kind == "b":
        raise NotLowered("a product of bools")
    (shape,) = parse_rule(rule).output_shapes([x.shape, y.shape])
    return cx.b.dot(x, y, rule=rule, type=TensorType(kind, shape))


@lowers("baddbmm.default")
def _baddbmm(cx: Context, bias: Node, x: Node, y: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    kind = wide(x.dtype)
    left, right, rule = _batched(cx, x, y)
    made = cx.reshape(_wide_dot(cx, left, right, rule, kind), (*x.shape[:2], y.shape[2]))
    work = product([*x.shape[1:], y.shape[2]])
    drops = not (isinstance(work, int) and work < _LOOPED)
    return _plus(cx, bias, made, beta, alpha, drops)


@lowers("addbmm.default")
def _addbmm(cx: Context, bias: Node, x: Node, y: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    made = _wide_dot(cx, x, y, "a m k, a k n -> m n", wide(x.dtype))
    return _plus(cx, bias, made, beta, alpha)


@lowers("_cdist_forward.default")
def _cdist(cx: Context, x: Node, y: Node, p: float, compute_mode: int | None) -> Node:
    rows = cx.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    columns = cx.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    gap = cx.elementwise("abs", cx.elementwise("sub", rows, columns))
    return _power_norm(cx, gap, p)


@lowers("_pdist_forward.default")
def _pdist(cx: Context, x: Node, p: float = 2) -> Node:
    n = x.shape[0]
    if not isinstance(n, int):
        raise NotLowered("pdist of a symbolic size")
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    if not pairs:
        return cx.full(0, cx.want)
    sides = [cx.b.const([pair[k] for pair in pairs], I64) for k in range(2)]
    a, b = (cx.b.gather(x, side, rule="n! d, k -> k d") for side in sides)
    return _power_norm(cx, cx.elementwise("abs", cx.elementwise("sub", a, b)), p)


def _power_norm(cx: Context, size: Node, p: float) -> Node:
    """Computes the p-norm of non-negative values along the last axis."""
    last = [size.tensor.rank - 1]
    if p == 0:
        return cx.reduce("sum", cx.cast(cx.elementwise("ne", size, 0.0), size.dtype), last)
    if p == 1:
        return cx.reduce("sum", size, last)
    if p == 2:
        return cx.elementwise("sqrt", cx.reduce("sum", cx.elementwise("mul", size, size), last))
    if p == math.inf:
        return cx.elementwise("max", cx.reduce("max", size, last), 0.0)
    total = cx.reduce("sum", cx.elementwise("pow", size, float(p)), last)
    return cx.elementwise("pow", total, 1.0 / p)


@lowers("_trilinear.default")
def _trilinear(
    cx: Context, x: Node, weight: Node, y: Node, new_x: Sequence[int], new_weight: Sequence[int],
    new_y: Sequence[int], summed: Sequence[int], unroll_dim: int = 1,
) -> Node:  # fmt: skip
    """Computes `bilinear`: a sum of products of three operands, with new axes of size 1 in each."""
    rank = x.tensor.rank + len(new_x)
    factors: list[Node] = []
    for value, new in ((x, new_x), (weight, new_weight), (y, new_y)):
        sizes = iter(value.shape)
        shape = [1 if axis in new else next(sizes) for axis in range(rank)]
        factors.append(cx.cast(cx.reshape(value, shape), wide(value.dtype)))
    terms = cx.elementwise("mul", cx.elementwise("mul", factors[0], factors[1]), factors[2])
    return cx.cast(cx.reduce("sum", terms, cx.axes(summed, rank)), x.dtype)


@lowers("addmv.default")
def _addmv(cx: Context, bias: Node, x: Node, y: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    made = _wide_dot(cx, x, y, "m k, k -> m", wide(x.dtype))
    return _plus(cx, bias, made, beta, alpha)


# ---- normalizations


@lowers("native_layer_norm.default")
def _layer_norm(
    cx: Context, x: Node, shape: Sequence[Dim], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, ...]:
    need_float(x)
    axes = tuple(range(x.tensor.rank - len(shape), x.tensor.rank))
    out, kind = x.dtype, wide(x.dtype)
    x = cx.cast(x, kind)
    spread, average = variance(cx, x, axes, 0.0, False)
    inverse = cx.elementwise("rsqrt", cx.elementwise("add", spread, eps))
    centered = cx.elementwise("sub", x, cx.stretch(average, x.shape, axes))
    y = cx.elementwise("mul", centered, cx.stretch(inverse, x.shape, axes))
    y = _affine(cx, y, weight, bias)
    stats = [cx.keep_axes(v, x.shape, axes) for v in (average, inverse)]
    return cx.cast(y, out), *(cx.cast(s, t.dtype) for s, t in zip(stats, cx.want[1:], strict=True))


@lowers("native_group_norm.default")
def _group_norm(
    cx: Context, x: Node, weight: Node | None, bias: Node | None, batch: Dim, channels: int,
    inner: Dim, groups: int, eps: float,
) -> tuple[Node, ...]:  # fmt: skip
    """Normalizes over a separate axis of groups, so that all ops share one shape."""
    need_float(x)
    out, kind, shape = x.dtype, wide(x.dtype), (batch, groups, channels // groups, inner)
    apart = cx.cast(cx.reshape(x, shape), kind)
    spread, average = variance(cx, apart, (2, 3), 0.0, False)
    inverse = cx.elementwise("rsqrt", cx.elementwise("add", spread, eps))
    y = cx.elementwise("sub", apart, cx.stretch(average, shape, (2, 3)))
    y = cx.elementwise("mul", y, cx.stretch(inverse, shape, (2, 3)))
    scale = [v and cx.stretch(cx.reshape(v, shape[1:3]), shape, (0, 3)) for v in (weight, bias)]
    y = cx.cast(_affine(cx, y, *scale), out)
    stats = zip((average, inverse), cx.want[1:], strict=True)
    return cx.reshape(y, x.shape), *(cx.cast(v, t.dtype) for v, t in stats)


def _affine(cx: Context, y: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        y = cx.elementwise("mul", y, cx.cast(weight, y.dtype))
    if bias is not None:
        y = cx.elementwise("add", y, cx.cast(bias, y.dtype))
    return y


@lowers("_fused_rms_norm.default")
def _rms_norm(
    cx: Context, x: Node, shape: Sequence[Dim], weight: Node | None, eps: float | None
) -> tuple[Node, Node]:
    need_float(x)
    axes = tuple(range(x.tensor.rank - len(shape), x.tensor.rank))
    out, kind = x.dtype, wide(x.dtype)
    if eps is None:
        eps = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}[out.name]
    x = cx.cast(x, kind)
    total = cx.reduce("sum", cx.elementwise("mul", x, x), axes)
    count = cx.scalar(cx.count(x.shape, axes), kind)
    inverse = cx.elementwise(
        "rsqrt", cx.elementwise("add", cx.elementwise("div", total, count), eps)
    )
    y = cx.elementwise("mul", x, cx.stretch(inverse, x.shape, axes))
    y = _affine(cx, y, weight, None)
    return cx.cast(y, out), cx.cast(cx.keep_axes(inverse, x.shape, axes), cx.want[1].dtype)


@lowers("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    cx: Context, x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node,
    momentum: float, eps: float,
) -> tuple[Node, Node, Node]:  # fmt: skip
    out, kind = x.dtype, wide(x.dtype)
    tail = (1,) * (x.tensor.rank - 2)

    def column(v: Node) -> Node:
        return cx.reshape(cx.cast(v, kind), (*v.shape, *tail))

    inverse = cx.elementwise("rsqrt", cx.elementwise("add", cx.cast(var, kind), eps))
    y = cx.elementwise("sub", cx.cast(x, kind), column(mean))
    y = cx.elementwise("mul", y, column(inverse))
    if weight is not None:
        y = cx.elementwise("mul", y, column(weight))
    if bias is not None:
        y = cx.elementwise("add", y, column(bias))
    empty = [cx.full(0, t) for t in cx.want[1:]]
    return cx.cast(y, out), empty[0], empty[1]


# ---- activations


def _float_body(cx: Context, x: Node) -> Node:
    need_float(x)
    return cx.cast(x, wide(x.dtype))


@lowers("gelu.default")
def _gelu(cx: Context, x: Node, *, approximate: str = "none") -> Node:
    out = x.dtype
    x = _float_body(cx, x)
    if approximate == "tanh":
        cube = cx.elementwise("mul", cx.elementwise("mul", x, x), x)
        inner = cx.elementwise("add", x, cx.elementwise("mul", cube, 0.044715))
        inner = cx.elementwise("mul", inner, math.sqrt(2 / math.pi))
        gate = cx.elementwise("tanh", inner)
    else:
        gate = cx.elementwise("erf", cx.elementwise("mul", x, math.sqrt(0.5)))
    half = cx.elementwise("mul", x, 0.5)
    return cx.cast(cx.elementwise("mul", half, cx.elementwise("add", gate, 1.0)), out)


@lowers("silu.default")
def _silu(cx: Context, x: Node) -> Node:
    out = x.dtype
    x = _float_body(cx, x)
    return cx.cast(cx.elementwise("mul", x, cx.elementwise("sigmoid", x)), out)


@lowers("leaky_relu.default")
def _leaky_relu(cx: Context, x: Node, slope: float = 0.01) -> Node:
    return cx.select(cx.elementwise("gt", x, 0.0), x, cx.elementwise("mul", x, slope), x.dtype)


@lowers("elu.default")
def _elu(cx: Context, x: Node, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Node:
    out = x.dtype
    x = _float_body(cx, x)
    powers = cx.elementwise("expm1", cx.elementwise("mul", x, float(input_scale)))
    low = cx.elementwise("mul", powers, float(alpha * scale))
    high = x if scale == 1 else cx.elementwise("mul", x, float(scale))
    return cx.cast(cx.select(cx.elementwise("gt", x, 0.0), high, low), out)


@lowers("binary_cross_entropy.default")
def _binary_cross_entropy(
    cx: Context, x: Node, target: Node, weight: Node | None = None, reduction: int = 1
) -> Node:
    """Computes -(t log x + (1 - t) log(1 - x)), with logarithms of at least -100.

    Like eager, a run checks that the input is in [0, 1].
    """
    out = x.dtype
    inside = cx.elementwise("and", cx.elementwise("ge", x, 0.0), cx.elementwise("le", x, 1.0))
    expect(cx, inside, "all elements of input should be between 0 and 1")
    x, target = _float_body(cx, x), _float_body(cx, target)
    low = cx.elementwise("max", cx.elementwise("log", x), -100.0)
    rest = cx.elementwise("log1p", cx.elementwise("neg", x))
    rest = cx.elementwise("max", rest, -100.0)
    left = cx.elementwise("mul", cx.elementwise("sub", target, 1.0), rest)
    loss = cx.elementwise("sub", left, cx.elementwise("mul", target, low))
    if weight is not None:
        loss = cx.elementwise("mul", loss, cx.cast(weight, loss.dtype))
    if reduction == 1:
        loss = mean(cx, loss, tuple(range(loss.tensor.rank)), False)
    elif reduction == 2:
        loss = cx.reduce("sum", loss, range(loss.tensor.rank))
    return cx.cast(loss, out)


@lowers("soft_margin_loss_backward.default")
def _soft_margin_backward(
    cx: Context, grad: Node, x: Node, target: Node, reduction: int = 1
) -> Node:
    """Computes -target * sigmoid(-target * x); sigmoid(..) - 1 would cancel for small losses."""
    out = x.dtype
    grad, x, target = (_float_body(cx, v) for v in (grad, x, target))
    away = cx.elementwise("neg", target)
    slope = cx.elementwise("sigmoid", cx.elementwise("mul", away, x))
    result = cx.elementwise("mul", cx.elementwise("mul", away, grad), slope)
    if reduction == 1:
        result = cx.elementwise("div", result, cx.scalar(x.tensor.size, x.dtype))
    return cx.cast(result, out)
