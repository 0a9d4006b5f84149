"""The reference semantics of every op, on NumPy arrays, with special functions that NumPy lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.ir.array_space import Array, ArraySpace, Run, einsum_text, identity
from stack.ir.axes import LETTERS, Rule, parse_rule
from stack.ir.bounds import check_index
from stack.ir.data import Data, decode, encode, round_bf16
from stack.ir.node import Node
from stack.ir.ragged_op import ragged_axes
from stack.ir.types import BF16, F16, DType, TensorType, TupleType

erf = math.erf


def each(function: Callable[[float], float], x: Any) -> Any:
    """Applies a function of one number to every element, in f64."""
    flat = np.asarray(x, dtype=np.float64).reshape(-1)
    out = np.fromiter((function(v) for v in flat.tolist()), np.float64, flat.size)
    return out.reshape(np.shape(x)).astype(np.asarray(x).dtype)


def lgamma(x: float) -> float:
    """Log of |gamma(x)|; inf at the poles."""
    if math.isnan(x):
        return x
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def digamma(x: float) -> float:
    """Reflection, recurrence up to 12, then the asymptotic series (Abramowitz, Stegun 6.3.18)."""
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == math.inf:
        return x
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if x == math.floor(x):
            return math.nan
        return digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1.0))
    total = 0.0
    while x < 12:
        total -= 1 / x
        x += 1
    y = 1 / (x * x)
    series = 0.0
    for term in (-691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12):
        series = y * (term + series)
    return total + math.log(x) - 0.5 / x - series


def erfinv(x: float) -> float:
    """Winitzki's approximation as a start, then Newton steps on erf or erfc."""
    if math.isnan(x) or abs(x) > 1:
        return math.nan
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    if x == 0:
        return x
    size = abs(x)
    log = math.log1p(-size * size)
    half = 2 / (math.pi * 0.147) + log / 2
    y = math.sqrt(math.sqrt(half * half - log / 0.147) - half)
    for _ in range(3):
        # erfc keeps the digits of 1 - erf in the tail
        error = (1 - size) - math.erfc(y) if size > 0.5 else math.erf(y) - size
        slope = 2 / math.sqrt(math.pi) * math.exp(-y * y)
        y -= error / slope
    return math.copysign(y, x)


__all__ = ["Array", "ArraySpace", "NumpySpace", "Run", "einsum_text", "identity"]


class NumpySpace(ArraySpace):
    """The reference semantics of every op."""

    def __init__(self) -> None:
        super().__init__(np)

    def dtype(self, dtype: DType) -> Any:
        return np.dtype(dtype.numpy)

    def constant(self, data: Data) -> Array:
        return data.array

    def cast(self, x: Array, source: DType, target: DType) -> Array:
        if target.kind == "b":
            return x != 0
        if source.kind == "c" and target.kind != "c":
            x = x.real
        return x.astype(target.numpy)

    def settle(self, value: Array, type_: TensorType) -> Array:
        array = np.asarray(value)
        if array.dtype != np.dtype(type_.dtype.numpy):
            array = array.astype(type_.dtype.numpy)
        return round_bf16(array) if type_.dtype is BF16 else array

    def elementwise(self, node: Node, *args: Array) -> Array:
        # computes in f32, so that an op of several steps rounds once
        if node.dtype is F16 and node.op in ("sigmoid", "rsqrt"):
            args = tuple(a.astype(np.float32) for a in args)
        return super().elementwise(node, *args)

    def op_bitcast(self, node: Node, x: Array) -> Array:
        source, target = node.args[0].dtype, node.dtype
        if source is BF16:
            x = (
                (np.ascontiguousarray(x).view(np.uint32) >> 16)
                .astype(np.uint16)
                .reshape(np.shape(x))
            )
        if target is BF16:
            wide = np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(np.shape(x))
        return np.ascontiguousarray(x).view(target.numpy).reshape(np.shape(x))

    def op_opaque(self, node: Node, *args: Array) -> Array | tuple[Array, ...]:
        """Calls the framework that the target names (`jax:fft`) on storage arrays."""
        target = str(node.attrs["target"])
        frontend = plugins.load("stack.frontends", target.partition(":")[0])
        storage = [encode(x, a.dtype) for x, a in zip(args, node.args, strict=True)]
        results = frontend.call_opaque(target, node.attrs["call"], storage)
        held = tuple(decode(r, t.dtype) for r, t in zip(results, node.types, strict=True))
        return held if isinstance(node.type, TupleType) else held[0]

    def op_ragged_dot(self, node: Node, x: Array, y: Array, ends: Array) -> Array:
        axes = ragged_axes(node)
        text, wide = einsum_text(parse_rule(axes.plain_rule)), self.wide(node.dtype)
        out = np.zeros(node.shape, wide)
        first = 0
        for group, end in enumerate(ends):
            rows = slice(int(first), max(int(end), 0))
            at = {axes.rows: rows, axes.groups: group}
            left, right, made = (
                array[tuple(at.get(n, slice(None)) for n in names)]
                for array, names in ((x, axes.left), (y, axes.right), (out, axes.result))
            )
            made[...] = np.einsum(text, left, right, dtype=wide, optimize=True)
            first = max(int(end), 0)
        return out

    def op_erf(self, node: Node, x: Array) -> Array:
        return each(erf, x)

    def op_lgamma(self, node: Node, x: Array) -> Array:
        return each(lgamma, x)

    def op_digamma(self, node: Node, x: Array) -> Array:
        return each(digamma, x)

    def op_erfinv(self, node: Node, x: Array) -> Array:
        return each(erfinv, x)

    def op_pow(self, node: Node, x: Array, y: Array) -> Array:
        if node.dtype.kind == "i":
            # a negative power of an integer is 0, except of 1 and -1
            safe = np.power(x, np.maximum(y, 0))
            unit = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0))
            return np.where(y < 0, unit, safe)
        return np.power(x, y)

    def grid(self, rule: Rule, frame: Any, x: Array, indices: Sequence[Array]) -> tuple[Array, ...]:
        place = super().grid(rule, frame, x, indices)
        check_index(place, x.shape, "an index")
        return place

    def scatter(self, x: Array, place: tuple[Array, ...], updates: Array, kind: str) -> Array:
        # 16-bit floats combine in f32; the frame has the axes of the updates, so shapes agree
        out = x.astype(np.float32) if x.dtype == np.float16 else x.copy()
        if kind == "set":
            out[place] = updates
        else:
            combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
            combine[kind].at(out, place, updates)
        return out

    def running(self, kind: str, x: Array, axis: int) -> Array:
        combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
        if x.dtype == np.float16:
            x = x.astype(np.float32)
        out = combine.accumulate(x, axis=axis, dtype=x.dtype)
        # sums start from 0, as in `reduce`: -0.0 alone gives 0.0
        return out + out.dtype.type(0) if kind == "sum" else out

    def convolve(self, node: Node, x: Array, w: Array) -> Array:
        at = node.attrs
        rank = x.ndim - 2
        spread = [(s - 1) * d + 1 for s, d in zip(x.shape[2:], at["lhs_dilation"], strict=True)]
        sizes = [s + lo + hi for s, lo, hi in zip(spread, at["low"], at["high"], strict=True)]
        # negative padding crops
        full = np.zeros(x.shape[:2] + tuple(spread), dtype=x.dtype)
        full[(..., *(slice(None, None, d) for d in at["lhs_dilation"]))] = x
        crop = tuple(
            slice(max(0, -lo), s - max(0, -hi))
            for s, lo, hi in zip(spread, at["low"], at["high"], strict=True)
        )
        full = full[(..., *crop)]
        widths = [(max(lo, 0), max(hi, 0)) for lo, hi in zip(at["low"], at["high"], strict=True)]
        full = np.pad(full, [(0, 0), (0, 0), *widths])
        assert list(full.shape[2:]) == sizes
        window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], at["rhs_dilation"], strict=True)]
        views = np.lib.stride_tricks.sliding_window_view(
            full, window, axis=tuple(range(2, 2 + rank))
        )
        steps = [slice(None, None, s) for s in at["stride"]]
        taps = [slice(None, None, d) for d in at["rhs_dilation"]]
        views = views[(slice(None), slice(None), *steps, *taps)]
        g = at["groups"]
        views = views.reshape(x.shape[0], g, x.shape[1] // g, *views.shape[2:])
        kernel = w.reshape(g, w.shape[0] // g, *w.shape[1:])
        where = LETTERS[4 : 4 + rank]
        tap = LETTERS[4 + rank : 4 + 2 * rank]
        text = f"abc{where}{tap},bdc{tap}->abd{where}"
        out = np.einsum(text, views, kernel, optimize=True, dtype=self.wide(node.dtype))
        return out.reshape(x.shape[0], w.shape[0], *out.shape[3:])
