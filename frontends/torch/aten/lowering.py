"""The lowering table: maps each ATen overload to a function that builds ops of the IR.

A lowering is a function `(cx, *args, **kwargs)` with the overload's own argument names. It gets
tensors as nodes, sizes as `int` or size expressions, element types as `DType`, and returns a node
or a tuple of nodes. The other files of this room fill the table. Torch decomposes ops that are not
in it; an op without a decomposition becomes an `opaque` node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.frontends.arithmetic.storage_types import is_storage, narrowed, widened
from stack.frontends.torch.tensors.arrays import saturates
from stack.ir.axes import names
from stack.ir.builder import Builder, constant
from stack.ir.dim import Dim, Expr, add, maximum, mul, product
from stack.ir.node import Node
from stack.ir.types import BF16, BOOL, DTYPES, F16, F32, F64, I64, DType, TensorType

Number = bool | int | float
Lowering = Callable[..., Any]

LOWERINGS: dict[str, Lowering] = {}
GROUP = "stack.torch_lowerings"  # entry points of modules that add lowerings

# Arguments that do not affect values.
IGNORED = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}
)

# Type promotion category by kind of element type.
_CATEGORY = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


class NotLowered(Exception):
    """Raised, with the reason, if these arguments have no lowering; the op becomes opaque."""


def lowers(*overloads: str) -> Callable[[Lowering], Lowering]:
    """Registers a lowering: "add.Tensor" is aten's, "prims.sum.default" is a full name."""

    def enter(function: Lowering) -> Lowering:
        for name in overloads:
            key = name if name.count(".") == 2 else f"aten.{name}"
            if key in LOWERINGS:
                raise ValueError(f"{key} has a lowering already")
            LOWERINGS[key] = function
        return function

    return enter


def load_lowerings() -> None:
    """Adds the lowerings of wings and other packages to the table, without those of broken ones.

    They are modules of entry point group `stack.torch_lowerings`.
    """
    for name in plugins.names(GROUP):
        with suppress(Exception):
            plugins.load(GROUP, name)


@dataclass(frozen=True)
class IndexCheck:
    """Bounds of an index input, checked before a call.

    Attributes:
        param: the integer parameter.
        low, high: inclusive bounds of its values.
        besides: values outside the bounds that are also allowed (`ignore_index`).
        what: the op that reads the index, for the message.
    """

    param: Node
    low: Dim
    high: Dim
    besides: tuple[int, ...]
    what: str


@dataclass(frozen=True)
class Promise:
    """A condition checked after a run, where eager would raise.

    Attributes:
        holds: a bool scalar of the program that must be true.
        error: name of the exception raised otherwise.
        text: its message.
    """

    holds: Node
    error: str
    text: str


@dataclass
class Context:
    """State and helpers for lowerings.

    Attributes:
        b: builder of IR nodes.
        want: torch's type of the result, or a tuple of types.
        name: the overload that is being lowered.
        checks: bounds of index inputs.
        promises: conditions checked after a run: computed indices, assertions.
        given: the arguments of this op in torch's graph.
        trusted: true if indices were checked before (in a backward graph).
        is_inside: true inside a block, whose parameters cannot be checked before a call.
    """

    b: Builder
    want: Any = None
    name: str = ""
    checks: list[IndexCheck] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    given: Sequence[Any] = ()
    trusted: bool = False
    is_inside: bool = False

    @property
    def fakes(self) -> tuple[Any, ...]:
        """The fake tensors that torch traced for the arguments of this op; None for numbers."""
        return tuple(getattr(arg, "meta", {}).get("val") for arg in self.given)

    # ---- leaves

    def scalar(self, value: Node | Dim | Number, dtype: DType) -> Node:
        """Converts a number, size or node to a node of `dtype`.

        Integers that are out of its range wrap as in a C cast.
        """
        if isinstance(value, Node):
            return self.cast(value, dtype)
        if isinstance(value, Expr):
            return self.cast(self.b.size_of(value), dtype)
        if dtype.is_integer and isinstance(value, int) and not isinstance(value, bool):
            bits = np.asarray(value % (1 << dtype.bits), dtype=f"u{dtype.bits // 8}")
            return constant(bits.view(dtype.numpy)[()], dtype)
        return constant(value, dtype)

    def full(self, value: Node | Dim | Number, type_: TensorType) -> Node:
        """Returns an array filled with one value."""
        return self.broadcast(self.scalar(value, type_.dtype), type_.shape)

    def iota(self, shape: Sequence[Dim], axis: int, dtype: DType = I64) -> Node:
        """Returns the index of each element along an axis."""
        return self.b.iota(axis=axis, type=TensorType(dtype, tuple(shape)))

    # ---- movement; returns its operand if there is nothing to do

    def cast(self, x: Node, dtype: DType) -> Node:
        if x.dtype is not dtype:
            x = widened(self.b, x)
        if x.dtype is dtype:
            return x
        if not is_storage(dtype):
            return self.b.cast(x, type=x.tensor.with_dtype(dtype))
        made = narrowed(self.b, x, dtype, saturates(dtype))
        if made is None:
            raise NotLowered(f"no rule from {x.dtype} to {dtype}")
        return made

    def reshape(self, x: Node, shape: Sequence[Dim]) -> Node:
        shape = tuple(shape)
        if x.op == "reshape":
            x = x.args[0]
        return x if x.shape == shape else self.b.reshape(x, type=x.tensor.with_shape(shape))

    def transpose(self, x: Node, perm: Sequence[int]) -> Node:
        perm = tuple(perm)
        if x.op == "transpose":
            inner = x.args[0]
            perm = tuple(x.attrs["perm"][p] for p in perm)
            x = inner
        return x if perm == tuple(range(len(perm))) else self.b.transpose(x, perm=perm)

    def broadcast(self, x: Node, shape: Sequence[Dim]) -> Node:
        """Broadcasts to `shape` by torch's rule: aligned at the last axis, size 1 stretches."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        lead = len(shape) - x.tensor.rank
        kept = [i for i, s in enumerate(x.shape) if s == shape[lead + i]]
        if len(kept) == len(shape):
            return x
        lost = [s for i, s in enumerate(x.shape) if i not in kept]
        if any(s != 1 for s in lost):
            raise NotLowered(f"{x.type} does not broadcast to {list(shape)}")
        small = self.reshape(x, [x.shape[i] for i in kept])
        axes = tuple(lead + i for i in kept)
        return self.b.broadcast(small, type=x.tensor.with_shape(shape), axes=axes)

    def fit(self, x: Node, shape: Sequence[Dim]) -> Node:
        """Broadcasts an operand of an elementwise op to `shape`.

        An operand with a single element becomes one of rank 0 instead, which the op broadcasts.
        """
        if all(s == 1 for s in x.shape) and tuple(shape) != x.shape:
            return self.reshape(x, ())
        return self.broadcast(x, shape)

    def slice(self, x: Node, axis: int, start: Dim, limit: Dim, step: int = 1) -> Node:
        """Slices one axis: elements start, start + step, ... below limit."""
        if start == 0 and limit == x.shape[axis] and step == 1:
            return x
        zeros = [0] * x.tensor.rank
        starts, limits, steps = list[Dim](zeros), list(x.shape), [1] * x.tensor.rank
        starts[axis], limits[axis], steps[axis] = start, limit, step
        return self.b.slice(x, start=tuple(starts), limit=tuple(limits), step=tuple(steps))

    def select_at(self, x: Node, axis: int, position: Dim) -> Node:
        """Selects one index of an axis and removes the axis."""
        cut = self.slice(x, axis, position, position + 1)
        return self.reshape(cut, x.shape[:axis] + x.shape[axis + 1 :])

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        return parts[0] if len(parts) == 1 else self.b.concat(*parts, axis=axis)

    def pad(self, x: Node, low: Sequence[Dim], high: Sequence[Dim], value: Any) -> Node:
        """Pads with a value; negative amounts crop."""
        for axis, (lo, hi) in enumerate(zip(low, high, strict=True)):
            cut_low, cut_high = (maximum(mul(v, -1), 0) for v in (lo, hi))
            x = self.slice(x, axis, cut_low, add(x.shape[axis], mul(cut_high, -1)))
        low, high = (tuple(maximum(v, 0) for v in amounts) for amounts in (low, high))
        if all(isinstance(v, int) and v == 0 for v in (*low, *high)):
            return x
        zeros = (0,) * x.tensor.rank
        return self.b.pad(x, self.scalar(value, x.dtype), low=low, high=high, interior=zeros)

    def keep_axes(self, x: Node, shape: Sequence[Dim], axes: Sequence[int]) -> Node:
        """Reshapes a reduced value so that the reduced `axes` of `shape` are kept, with size 1."""
        return self.reshape(x, [1 if i in axes else s for i, s in enumerate(shape)])

    def stretch(self, x: Node, shape: Sequence[Dim], axes: Sequence[int]) -> Node:
        """Broadcasts a reduced value to `shape`, along the `axes` that it lacks."""
        if not axes:
            return x
        kept = tuple(i for i in range(len(shape)) if i not in axes)
        return self.b.broadcast(x, type=x.tensor.with_shape(tuple(shape)), axes=kept)

    # ---- elementwise

    def common(self, *values: Any) -> DType:
        """Returns torch's computation type: tensors win over 0-d tensors, these over numbers."""
        ranked: list[tuple[int, DType]] = []
        for value in values:
            if isinstance(value, Node):
                ranked.append((1 if value.tensor.rank else 2, value.dtype))
            elif value is not None:
                ranked.append((3, number_dtype(value)))
        best: DType | None = None
        for level in (1, 2, 3):
            here = [d for r, d in ranked if r == level]
            if not here:
                continue
            merged = here[0]
            for dtype in here[1:]:
                merged = promote(merged, dtype)
            if best is None:
                best = merged
            elif _CATEGORY[merged.kind] > _CATEGORY[best.kind]:
                # a float number with integer tensors means the default float
                best = F32 if level == 3 and merged.kind == "f" else merged
        if best is None:
            raise NotLowered("no operands")
        return best

    def shape_of(self, *values: Any) -> tuple[Dim, ...]:
        """Returns the shape that operands broadcast to."""
        shapes = [v.shape for v in values if isinstance(v, Node)]
        rank = max((len(s) for s in shapes), default=0)
        out: list[Dim] = []
        for axis in range(rank):
            sizes = [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0]
            out.append(next((s for s in sizes if s != 1), 1))
        return tuple(out)

    def align(self, values: Sequence[Any], dtype: DType) -> tuple[list[Node], tuple[Dim, ...]]:
        """Returns operands of an elementwise op, cast and broadcast, and their common shape."""
        shapes = {v.shape for v in values if isinstance(v, Node)}
        shape = shapes.pop() if len(shapes) == 1 else self.shape_of(*values)
        nodes: list[Node] = []
        for value in values:
            is_made = isinstance(value, Node) and value.dtype is dtype
            node = value if is_made else self.scalar(value, dtype)
            nodes.append(node if node.shape in ((), shape) else self.fit(node, shape))
        return nodes, shape

    def elementwise(self, op: str, *values: Any, dtype: DType | None = None) -> Node:
        """Builds an elementwise op on broadcast operands, in `dtype` (default: their common type).

        Numbers are rounded to that type, except factors and divisors of 16-bit floats: torch keeps
        them in f32.
        """
        kind = dtype or self.common(*values)
        wide = kind
        if kind in (BF16, F16) and op in ("mul", "div"):
            wide = (
                F32 if any(_inexact(v, kind) for v in values) or _is_wide(values[1], kind) else kind
            )
        nodes, shape = self.align(values, wide)
        out = self.b.op(op, nodes)
        if out.dtype is wide and wide is not kind:
            out = self.cast(out, kind)
        return out if out.shape == shape else self.broadcast(out, shape)

    def select(self, test: Node, yes: Any, no: Any, dtype: DType | None = None) -> Node:
        """Selects `yes` where the bool `test` is true, else `no`."""
        kind = dtype or self.common(yes, no)
        shape = self.shape_of(test, yes, no)
        branches = [self.fit(self.scalar(v, kind), shape) for v in (yes, no)]
        return self.broadcast(self.b.select(self.fit(test, shape), *branches), shape)

    def truth(self, x: Node) -> Node:
        """Returns true for elements that are not 0."""
        return x if x.dtype is BOOL else self.elementwise("ne", x, 0)

    def axes(self, dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
        """Returns sorted non-negative axes; None or an empty list means all."""
        if dims is None or (not isinstance(dims, int) and not len(dims)):
            return tuple(range(rank))
        listed = [dims] if isinstance(dims, int) else list(dims)
        return tuple(sorted(axis_of(d, rank) for d in listed)) if rank else ()

    # ---- reductions

    def reduce(self, kind: str, x: Node, axes: Sequence[int], keep: bool = False) -> Node:
        axes = tuple(axes)
        out = self.b.reduce(x, kind=kind, axes=axes) if axes else x
        return self.keep_axes(out, x.shape, axes) if keep else out

    def count(self, shape: Sequence[Dim], axes: Sequence[int]) -> Dim:
        return product([shape[a] for a in axes])


def _inexact(value: Any, dtype: DType) -> bool:
    """True if a Python number has another f32 value once it is rounded to a 16-bit type.

    False for nan, tensors and nodes.
    """
    if not isinstance(value, int | float):
        return False
    held = constant(float(value), dtype).attrs["value"].array
    return float(held) != float(np.float32(value)) and value == value


def _is_wide(value: Any, dtype: DType) -> bool:
    """True for a 0-d tensor of a wider type, which torch treats like a number."""
    is_number = isinstance(value, Node) and not value.tensor.rank
    return is_number and value.dtype is not dtype and value.dtype is not BOOL


def number_dtype(value: Any) -> DType:
    """Returns the element type of a Python number or a size."""
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int | Expr):
        return I64
    if isinstance(value, float):
        return F32
    raise NotLowered(f"the number {value!r}")


def promote(a: DType, b: DType) -> DType:
    """Returns torch's promotion of two element types."""
    if a is b:
        return a
    first, second = _CATEGORY[a.kind], _CATEGORY[b.kind]
    if first != second:
        return a if first > second else b
    if a.kind == b.kind:
        if {a, b} == {BF16, F16}:
            return F32
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if unsigned.bits < signed.bits:
        return signed
    if unsigned.name == "u8":
        return DTYPES["i16"]
    raise NotLowered(f"promotion of {a} and {b}")


def axis_of(dim: int, rank: int) -> int:
    """Returns a non-negative axis; torch counts a scalar as having one axis."""
    return dim % max(rank, 1)


def letters(rank: int) -> list[str]:
    """Returns axis names for rules."""
    return list(names(rank))


def wide(dtype: DType) -> DType:
    """Returns torch's accumulation type: f32 for 16-bit floats."""
    return F32 if dtype in (BF16, F16) else dtype


def need_float(x: Node) -> None:
    """Raises NotLowered for an operand of a complex type."""
    if x.dtype.kind == "c":
        raise NotLowered("complex numbers")


__all__ = [
    "BOOL", "F32", "F64", "I64", "IGNORED", "LOWERINGS", "Context", "IndexCheck", "NotLowered",
    "axis_of", "letters", "lowers", "need_float", "number_dtype", "promote", "wide",
]  # fmt: skip
