"""Operators as nodes of the IR: `custom`, with the decomposition as its block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np

import stack.hosted.element_types as element_types
from stack.errors import RuleError, StackError, UsageError
from stack.hosted.arrays import Array, Namespace
from stack.hosted.declaration import NUMPY, Kernel, Op
from stack.hosted.registry import find
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.types import TensorType, type_symbols
from stack.wings import part

Attributes = tuple[tuple[str, Any], ...]


def custom(b: Builder, made: Op, args: Sequence[Node], attributes: Mapping[str, Any]) -> list[Node]:
    """Adds a `custom` node that calls the operator `made` on some nodes, and returns its results.

    Raises:
        RuleError: sizes or element types that the operator does not accept; names the argument.
        UsageError: an unknown attribute.
    """
    types = tuple(a.tensor for a in args)
    held = tuple(sorted(made.read(attributes).items()))
    rule = str(made.rule_for([t.rank for t in types]))
    attrs = {"name": made.name, "params": held, "rule": rule}
    short = made.name.partition(".")[2]
    node = b.op("custom", args, attrs, (decomposed(made, types, held).body,), named=short)
    if made.results == 1:
        return [node]
    return [b.op("item", (node,), {"index": i}, named=f"{short}.{i}") for i in range(made.results)]


def again(b: Builder, node: Node, args: Sequence[Node]) -> Node:
    """Adds the operator of a `custom` node on other operands, such as parts of its own."""
    made, types = find(str(node.attrs["name"])), tuple(a.tensor for a in args)
    block = decomposed(made, types, node.attrs["params"]).body
    return b.op("custom", args, node.attrs, (block,))


@cache
def decomposed(made: Op, types: tuple[TensorType, ...], attributes: Attributes) -> Func:
    """Traces an operator's decomposition to a function at the tensor level."""
    shapes = made.shapes([t.shape for t in types])
    made.check_elements(types)
    func = _traced(made, types, dict(attributes))
    found = [r.tensor.shape for r in func.results]
    if found != shapes:
        raise RuleError(f"{made.name}: rule {made.rule!r} says {shapes}, its code gives {found}")
    return func


def _traced(made: Op, types: Sequence[TensorType], attributes: Mapping[str, Any]) -> Func:
    if made.language != NUMPY:
        traced = part("ops", f"{made.language}-traced")
        return traced(partial(made.decomposition, **attributes), types)
    try:
        return _written_out(made, types, attributes)
    except ZeroDivisionError as error:
        raise RuleError(f"{made.name}: {made.why_empty([t.shape for t in types])}") from error
    except (RuleError, TypeError) as error:
        if isinstance(error, TypeError) and not any(type_symbols(t) for t in types):
            raise
        # code for numbers may reject a symbolic size
        shown = ", ".join(f"{n}: {t}" for n, t in zip(made.operands, types))
        takes = partial(_takes, made, attributes)
        why = element_types.others(made.operands, made.asked, types, takes) or error
        raise RuleError(f"{made.name}({shown}): {why}") from error


def _written_out(made: Op, types: Sequence[TensorType], attributes: Mapping[str, Any]) -> Func:
    """Traces an operator's decomposition, written for NumPy, to a function of the IR."""
    b = Builder()
    space = Namespace(b)
    params = [param(n, t) for n, t in zip(made.operands, types, strict=True)]
    out: Any = made.decomposition(space, *(Array(space, p) for p in params), **attributes)
    results = cast("tuple[Array, ...]", out) if isinstance(out, tuple) else (out,)
    return b.func(made.name.replace(".", "_"), params, [r.node for r in results])


def _takes(made: Op, attributes: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """True if the operator's decomposition can be traced for operands of these types."""
    try:
        _written_out(made, types, attributes)
    except (RuleError, TypeError, ZeroDivisionError):
        return False
    return True


def attributes_of(node: Node) -> dict[str, Any]:
    """Returns the attributes of the operator that a `custom` node calls."""
    pairs: Attributes = node.attrs.get("params") or ()
    return dict(pairs)


def check_calls(func: Func, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Raises RuleError if integer arguments of a function violate the limits of its operators.

    Nothing is computed: only operators whose integers are all parameters are checked.
    """
    known = dict(zip(func.params, arrays, strict=True))
    for node in func.nodes:
        if node.op != "custom" or any(a not in known and a.dtype.is_integer for a in node.args):
            continue
        given = [known[a] if a in known else _unknown(a) for a in node.args]
        try:
            made = find(str(node.attrs["name"]))
        except UsageError:
            continue  # declared elsewhere
        made.check_values(given, attributes_of(node))


def _unknown(node: Node) -> np.ndarray[Any, Any]:
    """Returns zeros of the node's shape in place of floats whose values are not known: only their
    shape is needed to check integers.
    """
    return np.broadcast_to(np.float32(0), tuple(map(int, node.shape)))  # pyright: ignore[reportArgumentType]


def kernel_of(node: Node, device: str) -> Kernel:
    """Returns the hand-written kernel of a `custom` node.

    Raises StackError if it is not declared.
    """
    name = str(node.attrs.get("kernel", ""))
    made = find(str(node.attrs["name"]))
    for kernel in made.kernels:
        if kernel.device == device and kernel.name == name:
            return kernel
    raise StackError(f"operator {made.name} has no kernel {name!r} for {device}: run pass `hosted`")


def kernel_call(node: Node, device: str) -> tuple[Kernel, dict[str, Any]]:
    """Returns the hand-written kernel of a `custom` node, and the attributes to call it with."""
    return kernel_of(node, device), attributes_of(node)


def with_kernel(node: Node, kernel: str) -> Node:
    """Returns the node with a hand-written kernel of that name."""
    attrs = {**node.attrs, "kernel": kernel}
    return Node(node.op, node.args, attrs, node.type, node.blocks)
