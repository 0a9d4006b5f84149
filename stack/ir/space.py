"""What ops mean, on NumPy arrays or on any namespace that looks like NumPy.

`NumpySpace` is the reference. A frontend derives its own space from `ArraySpace` to replay a
function in its framework: that is how a compiler peer gets programs that came from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stack.ir.axes import LETTERS, Rule, parse_rule
from stack.ir.data import Data, round_bf16
from stack.ir.node import Node
from stack.ir.types import BF16, DType, TensorType

Array = Any
Run = Callable[..., tuple[Array, ...]]

_NUMPY_NAMES = {
    "neg": "negative", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh",
    "acosh": "arccosh", "atanh": "arctanh", "round": "round", "add": "add", "sub": "subtract",
    "mul": "multiply", "rem": "fmod", "pow": "power", "atan2": "arctan2", "max": "maximum",
    "min": "minimum", "shl": "left_shift", "shr": "right_shift", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "select": "where", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "not": "invert",
}  # fmt: skip
_REDUCERS = {
    "sum": "sum", "prod": "prod", "max": "max", "min": "min", "and": "all", "or": "any",
}  # fmt: skip


def einsum_text(rule: Rule) -> str:
    """An axis rule of plain names as an einsum equation."""
    letters: dict[str, str] = {}

    def side(operands: Sequence[Any]) -> str:
        return ",".join(
            "".join(letters.setdefault(a.names[0], LETTERS[len(letters)]) for a in operand)
            for operand in operands
        )

    return f"{side(rule.inputs)}->{side(rule.outputs)}"


class ArraySpace:
    """Ops over a NumPy-like namespace `xp`. One method where a call is not one function."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    # ---- conversion, to be overridden

    def dtype(self, dtype: DType) -> Any:
        """The namespace's element type."""
        return getattr(self.xp, dtype.name)

    def constant(self, data: Data) -> Array:
        return self.xp.asarray(data.array, dtype=self.dtype(data.dtype))

    def cast(self, x: Array, source: DType, target: DType) -> Array:
        return x.astype(self.dtype(target))

    def settle(self, value: Array, type_: TensorType) -> Array:
        """Bring a result to its promised element type."""
        return value

    # ---- elementwise

    def elementwise(self, node: Node, *args: Array) -> Array:
        special = getattr(self, f"op_{node.op}", None)
        if special is not None:
            return special(node, *args)
        return getattr(self.xp, _NUMPY_NAMES.get(node.op, node.op))(*args)

    def op_cast(self, node: Node, x: Array) -> Array:
        return self.cast(x, node.args[0].dtype, node.dtype)

    def op_rsqrt(self, node: Node, x: Array) -> Array:
        return 1 / self.xp.sqrt(x)

    def op_sigmoid(self, node: Node, x: Array) -> Array:
        # exp of a non-positive number only: no overflow
        small = self.xp.exp(-self.xp.abs(x))
        return self.xp.where(x >= 0, 1 / (1 + small), small / (1 + small))

    def op_div(self, node: Node, x: Array, y: Array) -> Array:
        if node.dtype.is_integer:
            return (x - self.xp.fmod(x, y)) // y
        return self.xp.true_divide(x, y)

    # ---- leaves and movement

    def op_const(self, node: Node) -> Array:
        return self.constant(node.attrs["value"])

    def op_size(self, node: Node) -> Array:
        raise TypeError(f"the size {node.attrs['value']} is symbolic; bind it first (Func.bind)")

    def op_iota(self, node: Node) -> Array:
        axis = node.attrs["axis"]
        line = self.xp.arange(node.shape[axis]).astype(self.dtype(node.dtype))
        view = [-1 if i == axis else 1 for i in range(node.tensor.rank)]
        return self.xp.broadcast_to(self.xp.reshape(line, view), node.shape)

    def op_reshape(self, node: Node, x: Array) -> Array:
        return self.xp.reshape(x, node.shape)

    def op_transpose(self, node: Node, x: Array) -> Array:
        return self.xp.transpose(x, node.attrs["perm"])

    def op_broadcast(self, node: Node, x: Array) -> Array:
        axes = node.attrs["axes"]
        view = [node.shape[i] if i in axes else 1 for i in range(node.tensor.rank)]
        return self.xp.broadcast_to(self.xp.reshape(x, view), node.shape)

    def op_slice(self, node: Node, x: Array) -> Array:
        bounds = zip(*(node.attrs[k] for k in ("start", "limit", "step")), strict=True)
        return x[tuple(slice(s, e, k) for s, e, k in bounds)]

    def op_reverse(self, node: Node, x: Array) -> Array:
        return self.xp.flip(x, node.attrs["axes"])

    def op_pad(self, node: Node, x: Array, value: Array) -> Array:
        out = self.xp.broadcast_to(value, node.shape).copy()
        if x.size:
            low, interior = node.attrs["low"], node.attrs["interior"]
            place = tuple(
                slice(lo, lo + (size - 1) * (gap + 1) + 1, gap + 1)
                for lo, size, gap in zip(low, x.shape, interior, strict=True)
            )
            out = self.assign(out, place, x)
        return out

    def assign(self, x: Array, place: Any, value: Array) -> Array:
        x[place] = value
        return x

    def op_concat(self, node: Node, *args: Array) -> Array:
        return self.xp.concatenate(args, axis=node.attrs["axis"])

    def op_gather(self, node: Node, x: Array, *indices: Array) -> Array:
        rule = parse_rule(node.attrs["rule"])
        return x[self.grid(rule, rule.outputs[0], x, indices)]

    def op_scatter(self, node: Node, x: Array, *rest: Array) -> Array:
        rule = parse_rule(node.attrs["rule"])
        place = self.grid(rule, rule.inputs[-1], x, rest[:-1])
        return self.scatter(x, place, rest[-1], node.attrs["kind"])

    def grid(self, rule: Rule, frame: Any, x: Array, indices: Sequence[Array]) -> tuple[Array, ...]:
        """One index array for each axis of x, all broadcastable over the axes of `frame`."""
        order = [a.names[0] for a in frame]
        given = iter(zip(rule.inputs[1:], indices, strict=False))
        place: list[Array] = []
        for axis, size in zip(rule.inputs[0], x.shape, strict=True):
            if axis.mark == "!":
                operand, index = next(given)
                own = [a.names[0] for a in operand]
                index = self.xp.transpose(index, [own.index(n) for n in order if n in own])
            else:
                own = [axis.names[0]]
                index = self.xp.arange(size)
            sizes = dict(zip([n for n in order if n in own], index.shape, strict=True))
            place.append(self.xp.reshape(index, [sizes.get(n, 1) for n in order]))
        return tuple(place)

    def scatter(self, x: Array, place: tuple[Array, ...], updates: Array, kind: str) -> Array:
        raise NotImplementedError

    # ---- reductions and contractions

    def op_reduce(self, node: Node, x: Array) -> Array:
        axes, kind = tuple(node.attrs["axes"]), node.attrs["kind"]
        if not axes:
            return x
        wide = {"dtype": self.wide(node.dtype)} if kind in ("sum", "prod") else {}
        if kind in ("max", "min") and not math.prod(x.shape[a] for a in axes):
            return self.xp.full(node.shape, identity(kind, node.dtype))
        if kind in ("and", "or") and node.dtype.is_integer:
            name = "bitwise_and" if kind == "and" else "bitwise_or"
            return getattr(self.xp, name).reduce(x, axis=axes)
        return getattr(self.xp, _REDUCERS[kind])(x, axis=axes, **wide)

    def wide(self, dtype: DType) -> Any:
        """Accumulator type: 16-bit floats accumulate in f32."""
        from stack.ir.types import F32

        return self.dtype(F32 if dtype.kind == "f" and dtype.bits == 16 else dtype)

    def op_argreduce(self, node: Node, x: Array) -> Array:
        pick = self.xp.argmax if node.attrs["kind"] == "max" else self.xp.argmin
        return pick(x, axis=node.attrs["axis"]).astype(self.dtype(node.dtype))

    def op_scan(self, node: Node, x: Array) -> Array:
        axis, kind = node.attrs["axis"], node.attrs["kind"]
        if node.attrs["reverse"]:
            x = self.xp.flip(x, axis)
        out = self.running(kind, x, axis)
        return self.xp.flip(out, axis) if node.attrs["reverse"] else out

    def running(self, kind: str, x: Array, axis: int) -> Array:
        raise NotImplementedError

    def op_sort(self, node: Node, *args: Array) -> tuple[Array, ...]:
        axis, keys = node.attrs["axis"], node.attrs["num_keys"]
        order = None
        for key in reversed(args[:keys]):  # stable sort by each key, the first one last
            view = key if order is None else self.xp.take_along_axis(key, order, axis)
            if node.attrs["descending"]:
                flipped = self.xp.argsort(self.xp.flip(view, axis), axis=axis, stable=True)
                step = self.xp.flip(view.shape[axis] - 1 - flipped, axis)
            else:
                step = self.xp.argsort(view, axis=axis, stable=True)
            order = step if order is None else self.xp.take_along_axis(order, step, axis)
        return tuple(self.xp.take_along_axis(a, order, axis) for a in args)

    def op_dot(self, node: Node, a: Array, b: Array) -> Array:
        text = einsum_text(parse_rule(node.attrs["rule"]))
        return self.xp.einsum(text, a, b, dtype=self.wide(node.dtype), optimize=True)

    def op_conv(self, node: Node, x: Array, w: Array) -> Array:
        raise NotImplementedError

    # ---- control

    def op_cond(self, node: Node, run: Run, index: Array, *args: Array) -> tuple[Array, ...]:
        branch = min(max(int(index), 0), len(node.blocks) - 1)
        return run(node.blocks[branch], args)

    def op_while(self, node: Node, run: Run, *args: Array) -> tuple[Array, ...]:
        while bool(run(node.blocks[0], args)[0]):
            args = run(node.blocks[1], args)
        return args


def identity(kind: str, dtype: DType) -> Any:
    """The value that a reduction of nothing gives."""
    if kind in ("sum", "or"):
        return False if dtype.kind == "b" else 0
    if kind == "prod":
        return True if dtype.kind == "b" else 1
    if kind == "and":
        return True if dtype.kind == "b" else -1 if dtype.kind == "i" else (1 << dtype.bits) - 1
    if dtype.kind == "f":
        return -math.inf if kind == "max" else math.inf
    if dtype.kind == "b":
        return kind == "min"
    limits = np.iinfo(dtype.numpy)
    return limits.min if kind == "max" else limits.max


class NumpySpace(ArraySpace):
    """The reference meaning of every op."""

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

    def op_bitcast(self, node: Node, x: Array) -> Array:
        source, target = node.args[0].dtype, node.dtype
        if source is BF16:
            x = (x.view(np.uint32) >> 16).astype(np.uint16)
        if target is BF16:
            wide = np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32)
        return np.ascontiguousarray(x).view(target.numpy).reshape(np.shape(x))

    def op_erf(self, node: Node, x: Array) -> Array:
        return _each(math.erf, x)

    def op_lgamma(self, node: Node, x: Array) -> Array:
        return _each(_lgamma, x)

    def op_digamma(self, node: Node, x: Array) -> Array:
        return _each(_digamma, x)

    def op_erfinv(self, node: Node, x: Array) -> Array:
        return _each(_erfinv, x)

    def op_pow(self, node: Node, x: Array, y: Array) -> Array:
        if node.dtype.kind == "i":
            # a negative power of an integer is 0, except of 1 and -1
            safe = np.power(x, np.maximum(y, 0))
            unit = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0))
            return np.where(y < 0, unit, safe)
        return np.power(x, y)

    def op_sign(self, node: Node, x: Array) -> Array:
        return np.sign(x)

    def scatter(self, x: Array, place: tuple[Array, ...], updates: Array, kind: str) -> Array:
        out = x.copy()
        # the frame has every axis of the updates: transpose is not needed, shapes agree
        if kind == "set":
            out[place] = updates
        else:
            combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
            combine[kind].at(out, place, updates)
        return out

    def running(self, kind: str, x: Array, axis: int) -> Array:
        combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
        if x.dtype == np.float16:
            return combine.accumulate(x.astype(np.float32), axis=axis)
        return combine.accumulate(x, axis=axis) if x.size else x

    def op_conv(self, node: Node, x: Array, w: Array) -> Array:
        at = node.attrs
        rank = x.ndim - 2
        if not node.tensor.size or not x.size or not w.size:
            return np.zeros(node.shape, dtype=node.dtype.numpy)
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
        views = np.lib.stride_tricks.sliding_window_view(full, window, axis=tuple(range(2, 2 + rank)))
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
        return out.reshape(node.shape)


def _each(function: Callable[[float], float], x: Array) -> Array:
    flat = np.asarray(x, dtype=np.float64).reshape(-1)
    out = np.fromiter((function(v) for v in flat.tolist()), np.float64, flat.size)
    return out.reshape(np.shape(x)).astype(np.asarray(x).dtype)


def _lgamma(x: float) -> float:
    if math.isnan(x):
        return x
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _digamma(x: float) -> float:
    """Reflection, recurrence up to 10, then the asymptotic series (Abramowitz, Stegun 6.3.18)."""
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == math.inf:
        return x
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if x == math.floor(x):
            return math.nan
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1.0))
    total = 0.0
    while x < 10:
        total -= 1 / x
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132)))))
    return total + math.log(x) - 0.5 / x - series


def _erfinv(x: float) -> float:
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
