"""A function in double precision: the reference for errors of rounding."""

from __future__ import annotations

import random

import numpy as np

from stack.errors import StackError, VerifyError
from stack.ir.builder import constant
from stack.ir.data import Data
from stack.ir.func import Func
from stack.ir.node import Block, Node, remade_block
from stack.ir.traits import is_elementwise
from stack.ir.types import BF16, DTYPES, F64, DType, TupleType, Type
from stack.ir.verifier import verify

C128 = DTYPES["c128"]


def widen_dtype(dtype: DType) -> DType:
    """Returns f64 for floats, c128 for complex types; others are unchanged."""
    if dtype.kind == "f":
        return F64
    return C128 if dtype.kind == "c" else dtype


def widen_type(type_: Type) -> Type:
    """Returns a type in double precision."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(t.with_dtype(widen_dtype(t.dtype)) for t in type_.items))
    return type_.with_dtype(widen_dtype(type_.dtype))


def widen(func: Func, roundings: random.Random | None = None) -> Func:
    """Converts every float of a function to double precision; drops casts between floats.

    Args:
        roundings: multiplies each elementwise result by 1 plus or minus a rounding error of its own
            type, with random signs: how far results then move is how far rounding may move them.

    Raises StackError for ops where this has no meaning: bit patterns of floats, framework calls.
    """
    wide = Func(func.name, _block(func.body, {}, roundings), func.level)
    try:
        verify(wide)
    except VerifyError as error:
        raise StackError(f"@{func.name} has no form in double precision: {error.rule}") from error
    return wide


def _block(block: Block, known: dict[Node, Node], roundings: random.Random | None) -> Block:
    mapping = known if block.is_open else {}
    for p in block.params:
        mapping[p] = Node(p.op, (), p.attrs, widen_type(p.type))
    for node in block.nodes:
        made = _node(node, mapping, roundings)
        mapping[node] = _rounded(made, node, roundings) if roundings else made
    return remade_block(block, mapping)


def _rounded(made: Node, node: Node, roundings: random.Random) -> Node:
    """Multiplies a result by 1 plus or minus the rounding error of its type in `node`."""
    if isinstance(node.type, TupleType) or node.dtype.kind != "f" or not is_elementwise(node):
        return made
    unit = 2.0**-9 if node.dtype is BF16 else float(np.finfo(node.dtype.numpy).eps) / 2
    factor = constant(1 + roundings.choice((-unit, unit)), F64)
    return Node("mul", (made, factor), {}, made.type)


def _node(node: Node, mapping: dict[Node, Node], roundings: random.Random | None) -> Node:
    args = tuple(mapping[a] for a in node.args)
    type_ = widen_type(node.type)
    if node.op == "const":
        data: Data = node.attrs["value"]
        wide = widen_dtype(data.dtype)
        return Node("const", (), {"value": Data(data.array.astype(wide.numpy), wide)}, type_)
    if node.op in ("bitcast", "opaque", "custom") and _has_floats(node):
        raise StackError(f"op {node.op!r} works on the bits or the types of floats")
    if node.op == "cast" and type_ == args[0].type:
        return args[0]
    attrs = {k: widen_dtype(v) if isinstance(v, DType) else v for k, v in node.attrs.items()}
    return Node(node.op, args, attrs, type_, [_block(b, mapping, roundings) for b in node.blocks])


def _has_floats(node: Node) -> bool:
    types: list[Type] = [node.type, *(a.type for a in node.args)]
    items = [i for t in types for i in (t.items if isinstance(t, TupleType) else (t,))]
    return any(i.dtype.kind in "fc" for i in items)
