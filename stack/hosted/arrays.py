"""NumPy's API on values of the IR: traces a decomposition written for NumPy to nodes.

This is a strict subset of NumPy. Operands have one element type; numbers take the type of the array
next to them. Shapes broadcast as in NumPy, and sizes may be symbolic. A decomposition also runs in
NumPy unchanged: `decomposition(numpy, x, w)` and `decomposition(Namespace(b), x, w)`. Violations
raise a RuleError that names the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stack.errors import RuleError
from stack.hosted.indexing import indexed
from stack.hosted.remainder import floored
from stack.ir.axes import names
from stack.ir.builder import Builder, constant
from stack.ir.dim import Dim, Expr, equal, floordiv, mul, product
from stack.ir.node import Node
from stack.ir.types import DTYPES, F32, DType, TensorType

Number = int | float | bool
Axes = int | tuple[int, ...] | None  # axes of a reduction; None for all
Shape = tuple[Dim, ...]


def _operator(op: str, is_reversed: bool = False) -> Callable[..., Any]:
    def method(self: Array, other: Any) -> Array:
        pair = (other, self) if is_reversed else (self, other)
        return self.space.binary(op, *pair)

    return method


class Array:
    """A value of the IR with NumPy's operators."""

    def __init__(self, space: Namespace, node: Node) -> None:
        self.space = space
        self.node = node

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def ndim(self) -> int:
        return self.node.tensor.rank

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    def astype(self, dtype: DType) -> Array:
        """Casts to another element type; returns itself if the type is the same."""
        if dtype is self.dtype:
            return self
        return self.space.made("cast", self, type=self.node.tensor.with_dtype(dtype))

    def view(self, dtype: DType) -> Array:
        """Reinterprets the bits as another element type of the same width."""
        return self.space.made("bitcast", self, type=self.node.tensor.with_dtype(dtype))

    def reshape(self, *shape: Any) -> Array:
        """Changes the shape; one size may be -1."""
        sizes: list[Dim] = list(shape if isinstance(shape[0], int | Expr) else shape[0])
        if -1 in sizes:
            rest = product([s for s in sizes if s != -1])
            sizes[sizes.index(-1)] = self.space.divided(product(self.shape), rest)
        if tuple(sizes) == self.shape:
            return self
        return self.space.made("reshape", self, type=self.node.tensor.with_shape(tuple(sizes)))

    def transpose(self, *axes: int) -> Array:
        """Permutes the axes."""
        return self.space.made("transpose", self, perm=tuple(a % self.ndim for a in axes))

    def swapaxes(self, first: int, second: int) -> Array:
        """Swaps two axes."""
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self.transpose(*order)

    def __getitem__(self, index: Any) -> Array:
        return indexed(self, index)

    def __neg__(self) -> Array:
        return self.space.made("neg", self)

    def __invert__(self) -> Array:
        return self.space.made("not", self)

    def __bool__(self) -> bool:
        raise RuleError("a value of the IR is unknown during tracing: use where()")

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", True)
    __and__, __or__ = _operator("and"), _operator("or")
    __lshift__, __rshift__ = _operator("shl"), _operator("shr")
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))
    __eq__, __ne__ = _operator("eq"), _operator("ne")  # pyright: ignore
    __hash__ = None  # pyright: ignore

    def __mod__(self, other: Any) -> Array:
        return self.space.remainder(self, other)

    def __rmod__(self, other: Any) -> Array:
        return self.space.remainder(other, self)

    def __floordiv__(self, other: Any) -> Array:
        return self.space.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Array:
        return self.space.floor_divide(other, self)

    def __divmod__(self, other: Any) -> tuple[Array, Array]:
        return self.space.divmod(self, other)

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return self.space.divmod(other, self)

    def __matmul__(self, other: Array) -> Array:
        return self.space.matmul(self, other)


def _unary(op: str) -> Callable[..., Array]:
    def method(self: Namespace, x: Array) -> Array:
        return self.made(op, x)

    return method


def _binary(op: str) -> Callable[..., Array]:
    def method(self: Namespace, x: Any, y: Any) -> Array:
        return self.binary(op, x, y)

    return method


def _reduction(kind: str) -> Callable[..., Array]:
    def method(self: Namespace, x: Array, axis: Axes = None, keepdims: bool = False) -> Array:
        return self.reduced(kind, x, axis, keepdims)

    return method


class Namespace:
    """The `numpy` argument of a decomposition; builds nodes with `b`."""

    float16, bfloat16, float32, float64 = (DTYPES[n] for n in ("f16", "bf16", "f32", "f64"))
    int8, int16, int32, int64 = (DTYPES[n] for n in ("i8", "i16", "i32", "i64"))
    uint8, uint16, uint32, bool_ = (DTYPES[n] for n in ("u8", "u16", "u32", "bool"))
    inf, nan = float("inf"), float("nan")

    def __init__(self, b: Builder) -> None:
        self.b = b

    exp, exp2, log, log1p, expm1 = map(_unary, ("exp", "exp2", "log", "log1p", "expm1"))
    sqrt, tanh, floor, ceil, rint = map(_unary, ("sqrt", "tanh", "floor", "ceil", "round"))
    abs, sign, sin, cos, isnan = map(_unary, ("abs", "sign", "sin", "cos", "isnan"))
    maximum, minimum = map(_binary, ("max", "min"))
    sum, prod, max, min = map(_reduction, ("sum", "prod", "max", "min"))
    any, all = map(_reduction, ("or", "and"))

    # ---- making nodes

    def made(self, op: str, *args: Array, **attrs: Any) -> Array:
        """Builds one node."""
        hint = attrs.pop("type", None)
        return Array(self, self.b.op(op, [a.node for a in args], attrs, hint=hint))

    def full(self, shape: Shape, value: Number, dtype: DType = F32) -> Array:
        """Returns an array filled with one value."""
        return self.broadcast_to(Array(self, constant(value, dtype)), shape)

    def asarray(self, values: Sequence[Number], dtype: DType) -> Array:
        """Returns a constant array."""
        return Array(self, constant(values, dtype))

    def arange(self, stop: Dim, dtype: DType = DTYPES["i32"]) -> Array:
        """Returns 0, 1, ... below `stop`."""
        return self.made("iota", axis=0, type=TensorType(dtype, (stop,)))

    def binary(self, op: str, x: Any, y: Any) -> Array:
        """Broadcasts two operands and applies an op."""
        return self.made(op, *self._together(x, y))

    def divmod(self, x: Any, y: Any) -> tuple[Array, Array]:
        """Returns the floored quotient and the remainder, which has the divisor's sign."""
        return floored(self, *self._together(x, y))

    def floor_divide(self, x: Any, y: Any) -> Array:
        """Returns the quotient rounded down; for integers, division by 0 gives 0."""
        return self.divmod(x, y)[0]

    def remainder(self, x: Any, y: Any) -> Array:
        """Returns the remainder with the sign of `y`; for integers, division by 0 gives 0."""
        return self.divmod(x, y)[1]

    mod = remainder

    def fmod(self, x: Any, y: Any) -> Array:
        """Returns the remainder with the sign of `x`; for integers, division by 0 gives 0."""
        first, second = self._together(x, y)
        rest = self.made("rem", first, second)
        is_zero = self.binary("eq", second, 0)
        return rest if first.dtype.is_float else self.where(is_zero, 0, rest)

    def truncated_divide(self, x: Array, y: Array) -> Array:
        """Returns the quotient of integers, rounded towards 0."""
        return self.made("div", x, y)

    def where(self, condition: Array, x: Any, y: Any) -> Array:
        """Selects `x` where the condition is true, else `y`."""
        first, second = self._together(x, y)
        shape = _common([condition.shape, first.shape])
        return self.made(
            "select", *(self.broadcast_to(a, shape) for a in (condition, first, second))
        )

    def _together(self, *values: Any) -> list[Array]:
        arrays = [v for v in values if isinstance(v, Array)]
        dtypes = {a.dtype for a in arrays}
        if len(dtypes) != 1:
            shown = " and ".join(sorted(map(str, dtypes)))
            raise RuleError(f"operands of {shown or 'no array'}: cast them to one type (astype)")
        (dtype,) = dtypes
        held = [v if isinstance(v, Array) else Array(self, self._number(v, dtype)) for v in values]
        shape = _common([a.shape for a in held])
        return [self.broadcast_to(a, shape) for a in held]

    def _number(self, value: Any, dtype: DType) -> Node:
        if not isinstance(value, Expr):
            return constant(value, dtype)
        size = self.b.size_of(value)
        return size if dtype is size.dtype else self.b.cast(size, type=TensorType(dtype, ()))

    def divided(self, size: Dim, by: Dim) -> Dim:
        """Divides sizes that must divide evenly. Raises RuleError."""
        found = floordiv(size, by)
        if equal(mul(found, by), size) is False:
            raise RuleError(f"a size of {size} is not a multiple of {by}")
        return found

    # ---- types and shapes

    def result_type(self, *values: Any) -> DType:
        """Returns the widest float type among arrays and element types."""
        dtypes = [v if isinstance(v, DType) else v.dtype for v in values]
        return max(dtypes, key=lambda d: (d.is_float, d.bits))

    def broadcast_to(self, x: Array, shape: Shape) -> Array:
        """Broadcasts as NumPy does: missing axes and axes of size 1 repeat."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        first = len(shape) - x.ndim
        kept = [i for i in range(x.ndim) if x.shape[i] != 1 or shape[first + i] == 1]
        if len(kept) < x.ndim:
            x = x.reshape([x.shape[i] for i in kept])
        axes = tuple(first + i for i in kept)
        return self.made("broadcast", x, axes=axes, type=x.node.tensor.with_shape(shape))

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Concatenates arrays along an axis."""
        return self.made("concat", *arrays, axis=axis % arrays[0].ndim)

    def flip(self, x: Array, axis: int) -> Array:
        """Reverses an axis."""
        return self.made("reverse", x, axes=(axis % x.ndim,))

    def take_along_axis(self, x: Array, index: Array, axis: int) -> Array:
        """Gathers along one axis, with an index for each element of the others."""
        axes = names(x.ndim + 1)
        at = axis % x.ndim
        own, *rest = axes[-1], *axes[:-1]
        read = [a + "!" if i == at else a for i, a in enumerate(rest)]
        made = [own if i == at else a for i, a in enumerate(rest)]
        rule = f"{' '.join(read)}, {' '.join(made)} -> {' '.join(made)}"
        return self.made("gather", x, index, rule=rule)

    def take(self, x: Array, index: Array, axis: int = 0) -> Array:
        """Gathers slices of one axis by index."""
        axes = names(x.ndim + index.ndim)
        own, place = list(axes[: x.ndim]), list(axes[x.ndim :])
        at = axis % x.ndim
        read = [a + "!" if i == at else a for i, a in enumerate(own)]
        made = [*own[:at], *place, *own[at + 1 :]]
        return self.made(
            "gather", x, index, rule=f"{' '.join(read)}, {' '.join(place)} -> {' '.join(made)}"
        )

    # ---- reductions and products

    def reduced(self, kind: str, x: Array, axis: Axes, keepdims: bool) -> Array:
        """Reduces some axes, or all if `axis` is None."""
        axes = _places(axis, x.ndim)
        done = self.made("reduce", x, kind=kind, axes=axes)
        if not keepdims:
            return done
        return done.reshape([1 if i in axes else s for i, s in enumerate(x.shape)])

    def mean(self, x: Array, axis: Axes = None, keepdims: bool = False) -> Array:
        """Returns the mean: the sum divided by the number of elements."""
        total = self.reduced("sum", x, axis, keepdims)
        return total / product([x.shape[a] for a in _places(axis, x.ndim)])

    def argmax(self, x: Array, axis: int) -> Array:
        """Returns the index of the first maximum."""
        at = axis % x.ndim
        shape = tuple(s for i, s in enumerate(x.shape) if i != at)
        return self.made("argreduce", x, kind="max", axis=at, type=TensorType(DTYPES["i64"], shape))

    def cumsum(self, x: Array, axis: int) -> Array:
        """Returns cumulative sums."""
        return self.made("scan", x, kind="sum", axis=axis % x.ndim, reverse=False)

    def einsum(self, text: str, x: Array, y: Array, dtype: DType | None = None) -> Array:
        """Contracts two arrays; `dtype` is the type of the accumulator and the result."""
        left, _, made = text.replace(" ", "").partition("->")
        spaced = [" ".join(part) for part in (*left.split(","), made)]
        rule = f"{spaced[0]}, {spaced[1]} -> {spaced[2]}"
        shape = _result_shape(left.split(","), made, (x, y))
        return self.made("dot", x, y, rule=rule, type=TensorType(dtype or x.dtype, shape))

    def matmul(self, x: Array, y: Array, dtype: DType | None = None) -> Array:
        """Multiplies matrices, batched over leading axes; `y` may have none."""
        if x.ndim < 2 or y.ndim < 2 or y.ndim not in (2, x.ndim):
            raise RuleError(f"matmul of {x.node.type} and {y.node.type}: see einsum for others")
        axes = "".join(names(x.ndim + 1))
        before, m, k, n = axes[:-3], axes[-3], axes[-2], axes[-1]
        right = ("" if y.ndim == 2 else before) + k + n
        return self.einsum(f"{before}{m}{k},{right}->{before}{m}{n}", x, y, dtype)


def _places(axis: Axes, rank: int) -> tuple[int, ...]:
    given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(sorted(a % rank for a in given))


def _result_shape(operands: Sequence[str], made: str, arrays: Sequence[Array]) -> Shape:
    sizes = {n: s for o, a in zip(operands, arrays) for n, s in zip(o, a.shape)}
    return tuple(sizes[n] for n in made)


def _common(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    found: list[Dim] = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if found[place] == 1:
                found[place] = size
            elif size != 1 and equal(found[place], size) is False:
                shown = " and ".join(str(list(s)) for s in shapes)
                raise RuleError(f"shapes {shown} do not broadcast: {found[place]} and {size}")
    return tuple(found)
