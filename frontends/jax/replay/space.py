"""Implements ops in jax.numpy: replays a function in JAX, eagerly or under `jax.jit`.

Functions with 64-bit types have to be traced and called within `x64`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.buffer_callback import buffer_callback

from stack.errors import UsageError
from stack.frontends.jax.lax.lowering import jax_dtype
from stack.frontends.jax.lax.opaque_calls import bind
from stack.frontends.jax.replay.extremum import extremum, largest
from stack.ir.axes import Rule, parse_rule
from stack.ir.data import Data
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Node
from stack.ir.ragged_op import ragged_axes
from stack.ir.space import Array, ArraySpace, Run, identity
from stack.ir.types import F32, F64, DType, TensorType, TupleType

_LAX_UNARY = {
    "rsqrt": lax.rsqrt, "sigmoid": jax.nn.sigmoid, "erf": lax.erf, "erfinv": lax.erf_inv,
    "lgamma": lax.lgamma, "digamma": lax.digamma, "round": jnp.rint, "sign": lax.sign,
}  # fmt: skip
_COLLECT = {"sum": lax.cumsum, "prod": lax.cumprod, "max": lax.cummax, "min": lax.cummin}


class JaxSpace(ArraySpace):
    """Implements ops on jax.numpy arrays. bf16 is a native type here."""

    def __init__(self) -> None:
        super().__init__(jnp)

    def dtype(self, dtype: DType) -> Any:
        return jax_dtype(dtype)

    def constant(self, data: Data) -> Array:
        return jnp.asarray(data.array, dtype=self.dtype(data.dtype))

    def settle(self, value: Array, type_: TensorType) -> Array:
        wanted = self.dtype(type_.dtype)
        array = jnp.asarray(value)
        return array if array.dtype == wanted else array.astype(wanted)

    # ---- elementwise

    def elementwise(self, node: Node, *args: Array) -> Array:
        if node.op in _LAX_UNARY:
            return _LAX_UNARY[node.op](*args)
        return super().elementwise(node, *args)

    def op_cast(self, node: Node, x: Array) -> Array:
        if node.dtype.kind == "b":
            return x != 0
        if node.args[0].dtype.kind == "c" and node.dtype.kind != "c":
            x = jnp.real(x)
        return x.astype(self.dtype(node.dtype))

    def op_bitcast(self, node: Node, x: Array) -> Array:
        return lax.bitcast_convert_type(x, self.dtype(node.dtype))

    def op_rsqrt(self, node: Node, x: Array) -> Array:
        return lax.rsqrt(x)

    def op_sigmoid(self, node: Node, x: Array) -> Array:
        return jax.nn.sigmoid(x)

    def op_div(self, node: Node, x: Array, y: Array) -> Array:
        return lax.div(*jnp.broadcast_arrays(x, y))

    def op_rem(self, node: Node, x: Array, y: Array) -> Array:
        return lax.rem(*jnp.broadcast_arrays(x, y))

    def op_pow(self, node: Node, x: Array, y: Array) -> Array:
        if node.dtype.is_float:
            return lax.pow(*jnp.broadcast_arrays(x, y))
        # a negative power of an integer is 0, except for 1 and -1
        safe = jnp.power(x, jnp.maximum(y, 0))
        if node.dtype.kind == "u":
            return safe
        odd = jnp.where(y % 2 == 0, 1, -1)
        unit = jnp.where(x == 1, 1, jnp.where(x == -1, odd, 0))
        return jnp.where(y < 0, unit.astype(safe.dtype), safe)

    def op_shr(self, node: Node, x: Array, y: Array) -> Array:
        shift = lax.shift_right_logical if node.dtype.kind == "u" else lax.shift_right_arithmetic
        return shift(*jnp.broadcast_arrays(x, y))

    # ---- movement

    def op_reshape(self, node: Node, x: Array) -> Array:
        return lax.reshape(x, node.shape)

    def op_broadcast(self, node: Node, x: Array) -> Array:
        return lax.broadcast_in_dim(x, node.shape, node.attrs["axes"])

    def op_iota(self, node: Node) -> Array:
        dtype = self.dtype(node.dtype)
        if node.dtype.kind == "b":
            return lax.broadcasted_iota(np.int32, node.shape, node.attrs["axis"]).astype(dtype)
        return lax.broadcasted_iota(dtype, node.shape, node.attrs["axis"])

    def op_slice(self, node: Node, x: Array) -> Array:
        at = node.attrs
        limit = [max(lo, hi) for lo, hi in zip(at["start"], at["limit"], strict=True)]
        return lax.slice(x, at["start"], limit, at["step"])

    def op_reverse(self, node: Node, x: Array) -> Array:
        return lax.rev(x, node.attrs["axes"])

    def op_pad(self, node: Node, x: Array, value: Array) -> Array:
        at = node.attrs
        return lax.pad(x, value, list(zip(at["low"], at["high"], at["interior"], strict=True)))

    def op_gather(self, node: Node, x: Array, *indices: Array) -> Array:
        rule = parse_rule(node.attrs["rule"])
        frame = [axis.names[0] for axis in rule.outputs[0]]
        at = _Indexing(rule, frame)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(len(at.batch), len(frame))),
            collapsed_slice_dims=at.indexed,
            start_index_map=at.indexed,
            operand_batching_dims=at.shared,
            start_indices_batching_dims=at.shared_batch,
        )
        sizes = tuple(d if i in at.passed else 1 for i, d in enumerate(x.shape))
        found = lax.gather(x, at.vectors(indices, node), numbers, sizes, mode="promise_in_bounds")
        order = [*at.batch, *at.passed_names]
        return jnp.transpose(found, [order.index(n) for n in frame])

    def op_scatter(self, node: Node, x: Array, *rest: Array) -> Array:
        rule = parse_rule(node.attrs["rule"])
        *indices, updates = rest
        frame = [axis.names[0] for axis in rule.inputs[-1]]
        at = _Indexing(rule, frame)
        order = [*at.batch, *at.passed_names]
        updates = jnp.transpose(updates, [frame.index(n) for n in order])
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(len(at.batch), len(frame))),
            inserted_window_dims=at.indexed,
            scatter_dims_to_operand_dims=at.indexed,
            operand_batching_dims=at.shared,
            scatter_indices_batching_dims=at.shared_batch,
        )
        kind = node.attrs["kind"]
        scatter = lax.scatter if kind == "set" else getattr(lax, f"scatter_{kind}")
        vectors = at.vectors(indices, node)
        mode = "drop" if node.attrs.get("drop") else "promise_in_bounds"
        return scatter(x, vectors, updates, numbers, mode=mode)

    # ---- reductions and contractions

    def op_reduce(self, node: Node, x: Array) -> Array:
        kind, axes = node.attrs["kind"], tuple(node.attrs["axes"])
        if kind in ("and", "or") and node.dtype.is_integer:
            combine = lax.bitwise_and if kind == "and" else lax.bitwise_or
            start = np.asarray(identity(kind, node.dtype), node.dtype.numpy)
            return lax.reduce(x, start, combine, axes)
        if kind in ("max", "min") and node.dtype.is_float and axes and x.size:
            return extremum(x, kind, axes)
        return super().op_reduce(node, x)

    def running(self, kind: str, x: Array, axis: int) -> Array:
        if x.dtype in (jnp.bfloat16, jnp.float16) and kind in ("sum", "prod"):
            return _COLLECT[kind](x.astype(jnp.float32), axis)
        return _COLLECT[kind](x, axis)

    def op_sort(self, node: Node, *args: Array) -> tuple[Array, ...]:
        axis, keys = node.attrs["axis"], node.attrs["num_keys"]
        start = node.attrs.get("start", 0)
        first = node.attrs.get("first", args[0].shape[axis])
        is_part = start == 0 and first < args[0].shape[axis]
        if node.attrs["descending"] and keys == 1 and is_part and args[0].dtype == np.int32:
            return largest(args, first, axis)
        if not node.attrs["descending"]:
            found = lax.sort(args, dimension=axis, num_keys=keys, is_stable=True)
            return tuple(lax.slice_in_dim(a, start, first, axis=axis) for a in found)
        # flipping before and after keeps the order of equal keys
        flipped = [lax.rev(a, (axis,)) for a in args]
        found = lax.sort(flipped, dimension=axis, num_keys=keys, is_stable=True)
        return tuple(lax.slice_in_dim(lax.rev(a, (axis,)), start, first, axis=axis) for a in found)

    def op_dot(self, node: Node, a: Array, b: Array) -> Array:
        rule = parse_rule(node.attrs["rule"])
        wide = self.wide(node.dtype)
        out, names = contract(rule, a, b, wide, _precision(node))
        target = [axis.names[0] for axis in rule.outputs[0]]
        return jnp.transpose(out, [names.index(n) for n in target])

    def op_ragged_dot(self, node: Node, x: Array, y: Array, ends: Array) -> Array:
        axes = ragged_axes(node)
        rows, groups = axes.left.index(axes.rows), axes.right
        summed = [n for n in axes.left if n in axes.right and n not in axes.result]
        contracted = tuple(tuple(o.index(n) for n in summed) for o in (axes.left, axes.right))
        numbers = lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=(contracted, ((), ())),
            lhs_ragged_dimensions=[rows],
            rhs_group_dimensions=[] if axes.sums_rows else [groups.index(axes.groups)],
        )
        made = lax.ragged_dot_general(
            x, y, jnp.diff(ends, prepend=0), numbers, precision=_precision(node),
            preferred_element_type=self.wide(node.dtype),
        )  # fmt: skip
        free = [n for o in (axes.left, axes.right) for n in o if n in axes.result]
        names = [axes.groups, *free] if axes.sums_rows else free
        return jnp.transpose(made, [names.index(n) for n in axes.result])

    def convolve(self, node: Node, x: Array, w: Array) -> Array:
        at = node.attrs
        return lax.conv_general_dilated(
            x,
            w,
            window_strides=at["stride"],
            padding=list(zip(at["low"], at["high"], strict=True)),
            lhs_dilation=at["lhs_dilation"],
            rhs_dilation=at["rhs_dilation"],
            feature_group_count=at["groups"],
            precision=_precision(node),
            preferred_element_type=self.wide(node.dtype) if node.dtype.is_float else None,
        )

    # ---- control and the outside

    def op_cond(self, node: Node, run: Run, index: Array, *args: Array) -> tuple[Array, ...]:
        branches = [lambda xs, b=block: run(b, xs) for block in node.blocks]
        return lax.switch(index.astype(np.int32), branches, args)

    def op_while(self, node: Node, run: Run, *args: Array) -> tuple[Array, ...]:
        test, body = node.blocks
        return lax.while_loop(lambda xs: run(test, xs)[0], lambda xs: run(body, xs), tuple(args))

    def op_opaque(self, node: Node, *args: Array) -> Any:
        target, call = str(node.attrs["target"]), node.attrs["call"]
        if target.startswith("jax:"):
            results = bind(target, call, args)
        else:
            results = _call_back(node, target, call, args)
        return tuple(results) if isinstance(node.type, TupleType) else results[0]


class _Indexing:
    """The axis rule of a gather or scatter as lax's dimension numbers.

    Attributes:
        batch: names of the axes of the index arrays, in the order of the frame.
        indexed: operand axes that are indexed.
        shared: operand axes that the index arrays have too; `shared_batch`: their positions in
            `batch`.
        passed: operand axes that pass through; `passed_names`: their names.
    """

    def __init__(self, rule: Rule, frame: Sequence[str]) -> None:
        axes = list(enumerate(rule.inputs[0]))
        self.indexed = tuple(i for i, axis in axes if axis.mark == "!")
        count = len(self.indexed)
        self.operands = [[a.names[0] for a in o] for o in rule.inputs[1 : 1 + count]]
        named = {n for names in self.operands for n in names}
        through = {axis.names[0] for _, axis in axes if axis.mark != "!"}
        self.batch = [n for n in frame if n in named or n not in through]
        self.shared = tuple(i for i, a in axes if a.mark != "!" and a.names[0] in self.batch)
        self.shared_batch = tuple(self.batch.index(rule.inputs[0][i].names[0]) for i in self.shared)
        gone = {*self.indexed, *self.shared}
        self.passed = tuple(i for i, _ in axes if i not in gone)
        self.passed_names = [rule.inputs[0][i].names[0] for i in self.passed]

    def vectors(self, indices: Sequence[Array], node: Node) -> Array:
        """Stacks the index arrays, broadcast over all batch axes: `[batch..., indexed]`."""
        sizes: dict[str, Any] = {}
        for operand, names in zip(node.args[1:], self.operands):
            sizes.update(zip(names, operand.shape, strict=True))
        rule = parse_rule(node.attrs["rule"])
        is_scatter = node.op == "scatter"
        named = rule.inputs[-1] if is_scatter else rule.outputs[0]
        shape_of = node.args[-1] if is_scatter else node
        sizes.update(zip((a.names[0] for a in named), shape_of.shape, strict=True))
        shape = tuple(sizes[n] for n in self.batch)
        wide = jnp.result_type(np.int32, *indices)
        columns: list[Array] = []
        for index, names in zip(indices, self.operands, strict=True):
            order = [n for n in self.batch if n in names]
            moved = jnp.transpose(index, [names.index(n) for n in order]).astype(wide)
            axes = [self.batch.index(n) for n in order]
            columns.append(lax.broadcast_in_dim(moved, shape, axes))
        if not columns:
            return jnp.zeros((*shape, 0), np.int32)
        return jnp.stack(columns, axis=-1)


def contract(
    rule: Rule, a: Array, b: Array, dtype: Any, precision: Any = None
) -> tuple[Array, list[str]]:
    """Computes a dot rule by one dot_general. Returns the result and its axis names.

    Axes that occur in one operand only and not in the result are summed first.
    """
    a_names, b_names = ([axis.names[0] for axis in operand] for operand in rule.inputs)
    kept = [axis.names[0] for axis in rule.outputs[0]]
    a, a_names = _sum_lone(a, a_names, {*b_names, *kept}, dtype)
    b, b_names = _sum_lone(b, b_names, {*a_names, *kept}, dtype)
    batch = [n for n in a_names if n in b_names and n in kept]
    summed = [n for n in a_names if n in b_names and n not in kept]
    numbers = (
        ([a_names.index(n) for n in summed], [b_names.index(n) for n in summed]),
        ([a_names.index(n) for n in batch], [b_names.index(n) for n in batch]),
    )
    out = lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=dtype)
    rest = [n for n in (*a_names, *b_names) if n not in batch and n not in summed]
    return out, [*batch, *rest]


def _sum_lone(x: Array, names: list[str], others: set[str], dtype: Any) -> tuple[Array, list[str]]:
    lone = tuple(i for i, n in enumerate(names) if n not in others)
    if not lone:
        return x, names
    return jnp.sum(x, axis=lone, dtype=dtype), [n for n in names if n in others]


def _precision(node: Node) -> Any:
    # f32 is exact by default, on a GPU too; XLA's default rounding needs permission of the node
    is_exact = node.dtype in (F32, F64) and "precision" not in node.attrs
    return lax.Precision.HIGHEST if is_exact else None


def _call_back(node: Node, target: str, call: Any, args: Sequence[Array]) -> list[Array]:
    """Calls another framework's op on the host."""
    import stack.plugins as plugins

    name = target.partition(":")[0]
    known = plugins.names("stack.frontends")
    if name not in known:
        raise UsageError(f"the opaque op {target!r} belongs to no frontend; there are {known}")
    frontend = plugins.load("stack.frontends", name)
    types = node.type.items if isinstance(node.type, TupleType) else (node.tensor,)
    specs = [jax.ShapeDtypeStruct(t.shape, jax_dtype(t.dtype)) for t in types]

    def host(*arrays: Any) -> list[np.ndarray]:
        storage = [np.asarray(a) for a in arrays]
        storage = [a.view(np.uint16) if a.dtype.name == "bfloat16" else a for a in storage]
        results = frontend.call_opaque(target, call, storage)
        return [
            r.view(s.dtype) if s.dtype.name == "bfloat16" else r
            for r, s in zip(results, specs, strict=True)
        ]

    def fill(_context: Any, outs: Sequence[Any], *arrays: Any) -> None:
        for out, result in zip(outs, host(*arrays), strict=True):
            np.asarray(out)[...] = result

    # `pure_callback` copies operands on a thread of XLA's; with a single thread it deadlocks
    return lax.platform_dependent(
        *args,
        cpu=buffer_callback(fill, specs),
        default=lambda *xs: jax.pure_callback(host, specs, *xs),
    )


# ---- whole functions


def needs_x64(func: Func) -> bool:
    """True if a function has 64-bit values, which JAX only supports with x64 enabled."""
    pending = [func.body]
    while pending:
        block = pending.pop()
        for node in (*block.params, *block.nodes):
            types = node.type.items if isinstance(node.type, TupleType) else (node.type,)
            if any(t.dtype.bits >= 64 and t.dtype.name != "c64" for t in types):
                return True
            pending.extend(node.blocks)
    return False


def x64(func: Func) -> AbstractContextManager[Any]:
    """Returns the context in which to trace and call a replayed function."""
    return jax.enable_x64(True) if needs_x64(func) else nullcontext()


def replay(func: Func) -> Callable[..., Any]:
    """Returns a function of JAX arrays that returns a tuple; trace it with `jax.jit` or call it."""
    space = JaxSpace()

    def replayed(*arrays: Any) -> tuple[Any, ...]:
        args = [space.settle(a, p.tensor) for a, p in zip(arrays, func.params, strict=True)]
        return tuple(evaluate(func.body, args, space))

    replayed.__name__ = func.name
    return replayed
