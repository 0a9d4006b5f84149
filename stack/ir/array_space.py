"""The semantics of ops, on any NumPy-like array namespace.

A frontend derives its own space from `ArraySpace` to replay a function in its framework. This is
how a peer compiler gets programs that came from another framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stack.ir.axes import LETTERS, Rule, parse_rule
from stack.ir.conv_op import as_stored, channels_second
from stack.ir.data import Data
from stack.ir.node import Node
from stack.ir.types import F32, DType, TensorType

Array = Any
Run = Callable[..., tuple[Array, ...]]

_NUMPY_NAMES = {
    "neg": "negative", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh",
    "acosh": "arccosh", "atanh": "arctanh", "round": "round", "add": "add", "sub": "subtract",
    "mul": "multiply", "pow": "power", "atan2": "arctan2", "max": "maximum",
    "min": "minimum", "shl": "left_shift", "shr": "right_shift", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "select": "where", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "not": "invert",
}  # fmt: skip
_REDUCERS = {
    "sum": "sum", "prod": "prod", "max": "max", "min": "min", "and": "all", "or": "any",
}  # fmt: skip


def einsum_text(rule: Rule) -> str:
    """An axis rule with unmarked single axes as an einsum equation."""
    letters: dict[str, str] = {}

    def side(operands: Sequence[Any]) -> str:
        return ",".join(
            "".join(letters.setdefault(a.names[0], LETTERS[len(letters)]) for a in operand)
            for operand in operands
        )

    return f"{side(rule.inputs)}->{side(rule.outputs)}"


class ArraySpace:
    """Ops over a NumPy-like namespace `xp`. Ops that need more than one function have a method."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    # ---- conversion, to be overridden

    def dtype(self, dtype: DType) -> Any:
        """The namespace's element type."""
        return getattr(self.xp, dtype.name)

    def constant(self, data: Data) -> Array:
        """A constant as an array of the namespace."""
        return self.xp.asarray(data.array, dtype=self.dtype(data.dtype))

    def cast(self, x: Array, source: DType, target: DType) -> Array:
        """Converts the element type."""
        return x.astype(self.dtype(target))

    def settle(self, value: Array, type_: TensorType) -> Array:
        """Converts a result, evaluated by the namespace, to the element type that the IR declares.
        By default returns it unchanged.
        """
        return value

    # ---- elementwise

    def elementwise(self, node: Node, *args: Array) -> Array:
        """Evaluates an elementwise op: by the method `op_<name>`, or the namespace's function."""
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
            safe = self.xp.where(y == 0, self.xp.ones_like(y), y)
            whole = (x - self.xp.fmod(x, safe)) // safe
            return self.xp.where(y == 0, ~self.xp.zeros_like(whole), whole)
        return self.xp.true_divide(x, y)

    def op_rem(self, node: Node, x: Array, y: Array) -> Array:
        rest = self.xp.fmod(x, y)
        return self.xp.where(y == 0, x, rest) if node.dtype.is_integer else rest

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

    def op_unfold(self, node: Node, x: Array) -> Array:
        first, rank = int(node.attrs["axis"]), len(node.attrs["window"])
        steps = zip(node.attrs["stride"], node.attrs["dilation"], strict=True)
        for axis, (by, apart) in reversed(list(enumerate(steps, first))):
            count, taps = (range(int(node.shape[a])) for a in (axis, axis + rank))  # pyright: ignore
            places = np.array([[by * s + apart * k for k in taps] for s in count])
            x = x[(slice(None),) * axis + (places,)]
        behind = [first + 2 * i + 1 for i in range(rank)]
        return self.xp.moveaxis(x, behind, [first + rank + i for i in range(rank)])

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
        """Returns array `x` with the elements at the indices `place` replaced by `value`. May write
        to `x`.
        """
        x[place] = value
        return x

    def op_concat(self, node: Node, *args: Array) -> Array:
        return self.xp.concatenate(args, axis=node.attrs["axis"])

    def op_gather(self, node: Node, x: Array, *indices: Array) -> Array:
        rule = parse_rule(node.attrs["rule"])
        return x[self.grid(rule, rule.outputs[0], x, indices)]

    def op_scatter(self, node: Node, x: Array, *rest: Array) -> Array:
        rule, kind = parse_rule(node.attrs["rule"]), node.attrs["kind"]
        *indices, updates = rest
        if not node.attrs.get("drop"):
            place = self.grid(rule, rule.inputs[-1], x, indices)
            return self.scatter(x, place, updates, kind)
        if 0 in x.shape:
            return x
        # updates out of range go to an extra row past the end, which is then removed
        whole, marked = x, [i for i, axis in enumerate(rule.inputs[0]) if axis.mark == "!"]
        for i, axis in enumerate(marked):
            row = x[(*(slice(None),) * axis, slice(1))]
            x = self.xp.concatenate((x, row), axis=axis)
            index, size = indices[i], whole.shape[axis]
            indices[i] = self.xp.where((index >= 0) & (index < size), index, size)
        place = self.grid(rule, rule.inputs[-1], x, indices)
        made = self.scatter(x, place, updates, kind)
        return made[tuple(slice(size) for size in whole.shape)]

    def grid(self, rule: Rule, frame: Any, x: Array, indices: Sequence[Array]) -> tuple[Array, ...]:
        """Returns one index array for each axis of x, operand 0 of a gather or scatter: an index
        operand for an axis marked `!`, else 0, 1, 2, ... All broadcast over the axes of `frame`,
        the operand or result whose axes all index operands share.
        """
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
        """Returns a copy of array `x` in which `updates` are combined into the elements at the
        indices `place`, by the op that `kind` names.
        """
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
        """Inclusive scan of an array along an axis, with the op that `kind` names: "sum", "max"."""
        raise NotImplementedError

    def op_sort(self, node: Node, *args: Array) -> tuple[Array, ...]:
        axis, keys = node.attrs["axis"], node.attrs["num_keys"]
        order: Any = None
        for key in reversed(args[:keys]):  # stable sort by each key, the first one last
            view = key if order is None else self.xp.take_along_axis(key, order, axis)
            if node.attrs["descending"]:
                flipped = self.xp.argsort(self.xp.flip(view, axis), axis=axis, stable=True)
                step = self.xp.flip(view.shape[axis] - 1 - flipped, axis)
            else:
                step = self.xp.argsort(view, axis=axis, stable=True)
            order = step if order is None else self.xp.take_along_axis(order, step, axis)
        kept = slice(node.attrs.get("start", 0), node.attrs.get("first"))
        order = order[(slice(None),) * axis + (kept,)]
        return tuple(self.xp.take_along_axis(a, order, axis) for a in args)

    def op_dot(self, node: Node, a: Array, b: Array) -> Array:
        text = einsum_text(parse_rule(node.attrs["rule"]))
        return self.xp.einsum(text, a, b, dtype=self.wide(node.dtype), optimize=True)

    def op_conv(self, node: Node, x: Array, w: Array) -> Array:
        at = node.attrs
        if not node.tensor.size or not x.size or not w.size:
            return self.xp.zeros(node.shape, dtype=self.dtype(node.dtype))
        axes = tuple(range(x.ndim))
        x, w = (self.xp.transpose(a, channels_second(axes, at)) for a in (x, w))
        if at.get("transposed"):
            w = self._turned(w, at["groups"])
        return self.xp.transpose(self.convolve(node, x, w), as_stored(axes, at))

    def _turned(self, w: Array, groups: int) -> Array:
        """Converts the weight of a transposed convolution to that of an ordinary one, from
        `[g * c, o, k...]` to `[g * o, c, k...]`, with reversed windows.
        """
        split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
        turned = self.xp.flip(self.xp.swapaxes(split, 1, 2), tuple(range(3, split.ndim)))
        return turned.reshape(-1, w.shape[0] // groups, *w.shape[2:])

    def convolve(self, node: Node, x: Array, w: Array) -> Array:
        """Computes a convolution that is not transposed, with the stride, padding, dilation and
        groups of `node`. Axis 1 of `x` and of the result is the channels.
        """
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
    """Returns the identity of a reduction of kind `kind`, which is its result on an empty array: 0
    for "sum", the lowest value for "max".
    """
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
