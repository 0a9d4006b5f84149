"""Import of one call in an FX graph: its lowering, or an `opaque` call of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from stack.errors import RuleError, StackError, SymbolicSize, UnsupportedOp
from stack.frameworks.torch_private import OpOverload, pytree
from stack.frontends.arithmetic.storage_types import has_storage
from stack.frontends.torch.aten import (
    conv,
    elementwise_ops,
    index,
    nn,
    reduce,
    shape,
    unary_ops,
)
from stack.frontends.torch.aten.complex_numbers import (
    Pair,
    complex_call,
    is_complex,
    joined,
    part_type,
)
from stack.frontends.torch.aten.lowering import (
    IGNORED,
    LOWERINGS,
    Context,
    NotLowered,
    load_lowerings,
)
from stack.frontends.torch.importer.dims import Sizes, is_size
from stack.frontends.torch.tensors.arrays import (
    NAMESPACES,
    STACK_DTYPE,
    dtype_of,
    encode_call,
    encode_strides,
)
from stack.frontends.torch.tensors.random_ops import draws, has_effect, traced_strides
from stack.ir.builder import Builder
from stack.ir.dim import Dim, Expr, equal
from stack.ir.node import Node
from stack.ir.types import TensorType, TupleType

# imported because they register lowerings
_ = (
    conv, elementwise_ops, index, nn, reduce, shape, unary_ops,
)  # fmt: skip
load_lowerings()

# Ops that only move elements, so they also accept storage types.
_MOVES = frozenset({
    "_reshape_alias", "_to_copy", "_unsafe_view", "alias", "as_strided", "cat", "clone",
    "convert_element_type", "detach", "expand", "flip", "index", "index_select", "lift_fresh_copy",
    "permute", "repeat", "reshape", "roll", "select", "select_scatter", "slice", "slice_scatter",
    "split", "split_with_sizes", "squeeze", "stack", "t", "to", "transpose", "unbind", "unfold",
    "unsqueeze", "view", "view_element_type", "where",
})  # fmt: skip

# Ops that check or give a hint and have no result.
_SILENT = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "_print")


class Calls:
    """Imports the calls of a graph in order.

    Attributes:
        b: builder of IR nodes.
        cx: the context of lowerings.
        sizes: conversion of symbolic sizes.
        is_plain: True if kernels compute with the type of every value: no complex numbers, and no
            storage types such as f8e5m2.
        env: maps each FX node to its IR value.
        why: for each opaque op, the reason.
        effects: opaque calls with side effects, in order.
    """

    b: Builder
    cx: Context
    sizes: Sizes
    is_plain: bool
    env: dict[fx.Node, Any]
    why: dict[str, str]
    effects: list[Node]

    def _want(self, value: Any) -> Any:
        """Converts what torch traced: tensors to their types, sizes to those of the IR."""
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise StackError(f"the IR has no tensors of layout {value.layout}")
            shape = tuple(value.shape)
            is_known = all(type(size) is int for size in shape)
            dtype = STACK_DTYPE.get(value.dtype) or dtype_of(value.dtype)  # which raises
            return TensorType(dtype, shape if is_known else self.sizes.shape(shape))
        if isinstance(value, list | tuple):
            return tuple(self._want(v) for v in value)
        return self.sizes.dim(value) if is_size(value) else None

    def _value(self, arg: Any) -> Any:
        """Converts an argument of an FX node: nodes become IR values, dtypes and sizes IR ones."""
        if isinstance(arg, fx.Node):
            return self.env[arg]
        if isinstance(arg, list | tuple):
            return (
                type(arg)(self._value(a) for a in arg)
                if type(arg) in (list, tuple)
                else [self._value(a) for a in arg]
            )
        if isinstance(arg, torch.dtype):
            return dtype_of(arg)
        if isinstance(arg, torch.SymInt):
            return self.sizes.dim(arg)
        return arg

    def _size(self, arg: Any) -> Dim:
        value = self._value(arg)
        return value if isinstance(value, int | Expr) else self.sizes.dim(value)

    def _call(self, node: fx.Node, value: Any) -> Any:
        name = str(node.target)
        if any(part in name for part in _SILENT):
            return None
        args = [self._value(a) for a in node.args]
        kwargs = {k: self._value(v) for k, v in node.kwargs.items()}
        want = self._want(value)
        if not self.is_plain and is_complex((args, list(kwargs.values()), want)):
            return self._complex(node, name, args, kwargs, want)
        # in a loop, torch traces copy variants of view ops
        lowering = LOWERINGS.get(name) or LOWERINGS.get(name.replace("_copy.", "."))
        if lowering is None:
            return self._opaque(node, args, kwargs, want, "no lowering")
        if not self.is_plain and has_storage((args, list(kwargs.values()), want)):
            if not _moves(name):
                return self._opaque(node, args, kwargs, want, "it computes with a storage type")
        self.cx.want, self.cx.name, self.cx.given = want, name, node.args
        kept = {k: v for k, v in kwargs.items() if k not in IGNORED}
        checks, promises = len(self.cx.checks), len(self.cx.promises)
        try:
            out = lowering(self.cx, *args, **kept)
            is_one = isinstance(out, Node) and isinstance(want, TensorType)
            is_wanted = is_one and out.dtype is want.dtype and out.shape == want.shape
            return out if is_wanted else self._settled(out, want)
        except (NotLowered, RuleError, SymbolicSize) as error:
            del self.cx.checks[checks:]
            del self.cx.promises[promises:]
            return self._opaque(node, args, kwargs, want, str(error))

    def _complex(self, node: fx.Node, name: str, args: Any, kwargs: Any, want: Any) -> Any:
        """Imports a call with complex operands or results: in pairs, or opaque without a rule."""
        self.cx.name = name
        kept = {k: v for k, v in kwargs.items() if k not in IGNORED}
        try:
            out = complex_call(self.cx, name, args, kept, want)
            return self._settled(out, part_type(want))
        except (NotLowered, RuleError) as error:
            given, more = joined(self.cx, args), joined(self.cx, kwargs)
            return self._opaque(node, given, more, want, str(error))

    def _settled(self, out: Any, want: Any) -> Any:
        """Returns the result of a lowering, reshaped to the sizes that torch traced (`want`).

        Raises NotLowered if it has another element type, rank or number of results.
        """
        if isinstance(out, Pair):
            return Pair(self._settled(out.re, want), self._settled(out.im, want))
        if isinstance(out, tuple):
            if len(out) != len(want):
                raise NotLowered(f"{len(out)} results, torch has {len(want)}")
            return tuple(self._settled(o, w) for o, w in zip(out, want, strict=True))
        if out is None or not isinstance(want, TensorType):
            return out
        is_like = out.dtype is want.dtype and out.tensor.rank == want.rank
        if not is_like or any(equal(a, b) is False for a, b in zip(out.shape, want.shape)):
            raise NotLowered(f"the lowering gives {out.type}, torch has {want}")
        return self.cx.reshape(out, want.shape)

    # ---- opaque calls

    def _opaque(self, node: fx.Node, args: Any, kwargs: Any, want: Any, why: str) -> Any:
        target = str(node.target)
        if not isinstance(node.target, OpOverload):
            raise UnsupportedOp([(target, self.b.loc)])
        self.why[target] = why
        NAMESPACES.add(node.target.namespace)  # safe to call: it is in the user's program
        operands: list[Node] = []
        call = encode_call(args, kwargs, operands)
        if draws(node.target):
            given = pytree.tree_leaves((node.args, node.kwargs))
            strides = [traced_strides(_fake(a)) for a in given if _is_tensor(_fake(a))]
            call = encode_strides(call, list(map(self._value, strides)))
        attrs: dict[str, Any] = {"target": f"torch:{target}", "call": call}
        if has_effect(node.target):
            attrs["effect"] = len(self.effects)
            operands += self.effects[-1:]  # orders this call after the previous effect
        out = self._opaque_results(node, operands, attrs, want)
        if has_effect(node.target):
            tensors = out if isinstance(out, tuple) else (out,)
            self.effects.append(next(t for t in tensors if isinstance(t, Node)))
        return out

    def _opaque_results(
        self, node: fx.Node, operands: Sequence[Node], attrs: dict[str, Any], want: Any
    ) -> Any:
        if isinstance(want, TensorType):
            return self.b.op("opaque", operands, attrs, hint=want)
        items = tuple(w for w in want or () if isinstance(w, TensorType))
        if not items or any(isinstance(w, tuple) for w in want):
            raise UnsupportedOp([(str(node.target), self.b.loc)], "it gives no tensors")
        both = self.b.op("opaque", operands, attrs, hint=TupleType(items))
        self.b.note(both, node.name)
        found = iter(range(len(items)))
        return tuple(
            self.b.item(both, index=next(found)) if isinstance(w, TensorType) else w for w in want
        )


def kinds_of_values(gm: fx.GraphModule) -> tuple[set[torch.dtype], set[str]]:
    """Returns the element types of all traced values and numbers of a graph, and the kinds of
    devices, such as "cpu".
    """
    types: set[torch.dtype] = set()
    devices: set[str] = set()
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        made = (value,) if isinstance(value, torch.Tensor) else pytree.tree_leaves(value)
        for leaf in (*made, *node.args, *node.kwargs.values()):
            if isinstance(leaf, torch.Tensor):
                types.add(leaf.dtype)
                devices.add(leaf.device.type)
            elif isinstance(leaf, complex):
                types.add(torch.complex128)
    return types, devices


def _moves(name: str) -> bool:
    """True if an op, given by its name such as `aten.view.default`, moves elements unchanged."""
    return name.split(".")[1].removesuffix("_copy") in _MOVES or name.split(".")[1] in _MOVES


def _fake(arg: Any) -> Any:
    return arg.meta.get("val") if isinstance(arg, fx.Node) else None


def _is_tensor(fake: Any) -> bool:
    return isinstance(fake, torch.Tensor)
