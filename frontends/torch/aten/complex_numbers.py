"""Complex numbers of torch as pairs of real values: types, and conversion at the border.

The rules for ops on pairs are in the wing `complex`. Without it such ops are calls of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.frontends.arithmetic.complex_pairs import C64, C128, PART, WHOLE, Pair
from stack.frontends.torch.aten.lowering import Context, NotLowered
from stack.frontends.torch.tensors.arrays import encode_call
from stack.ir.node import Node
from stack.ir.types import TensorType
from stack.wings import part_if_here

# Complex results of real operands; torch's decompositions would write to parts of an array.
MADE_OF_PARTS = frozenset({"aten.complex.default", "aten.polar.default"})


def part_type(type_: Any) -> Any:
    """Returns the type of the parts of a complex type; other types unchanged."""
    if isinstance(type_, tuple):
        return tuple(map(part_type, type_))
    is_whole = isinstance(type_, TensorType) and type_.dtype in PART
    return type_.with_dtype(PART[type_.dtype]) if is_whole else type_


def is_complex(value: Any) -> bool:
    """True if a value, a type or a list of them contains something complex."""
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    if isinstance(value, Node):
        value = value.type
    if isinstance(value, TensorType):
        return value.dtype in PART
    return isinstance(value, Pair | complex) or value in (C64, C128)


# ---- conversion from and to complex arrays, which only the framework has


def joined(cx: Context, value: Any) -> Any:
    """Converts each pair in a result to torch's complex array; other values are unchanged."""
    if isinstance(value, list | tuple):
        return type(value)(joined(cx, v) for v in value)
    if not isinstance(value, Pair):
        return value
    type_ = value.re.tensor
    return foreign(cx, "view_as_complex", stacked(cx, value), type_.with_dtype(WHOLE[type_.dtype]))


def foreign(cx: Context, name: str, x: Node, type_: TensorType) -> Node:
    """Calls an op of torch that converts from or to complex arrays."""
    operands: list[Node] = []
    attrs = {"target": f"torch:aten.{name}.default", "call": encode_call([x], {}, operands)}
    return cx.b.op("opaque", operands, attrs, hint=type_)


def stacked(cx: Context, p: Pair) -> Node:
    """Returns a pair as one array with a last axis of two columns."""
    columns = [cx.reshape(v, (*v.shape, 1)) for v in (p.re, p.im)]
    return cx.concat(columns, p.re.tensor.rank)


def complex_call(
    cx: Context, name: str, args: Sequence[Any], kwargs: dict[str, Any], want: Any
) -> Any:
    """Imports an op with complex operands or results.

    Raises:
        NotLowered: if there is no rule, or without the wing of the rules.
    """
    rules = part_if_here("torch-complex")
    if rules is None:
        raise NotLowered("complex numbers need the wing 'complex'")
    return rules(cx, name, args, kwargs, want)
