"""A function in double precision: the reference for errors of rounding."""

from __future__ import annotations

from stack.errors import StackError, VerifyError
from stack.ir.data import Data
from stack.ir.func import Func
from stack.ir.node import Block, Node, remade_block
from stack.ir.types import DTYPES, F64, DType, TupleType, Type
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


def widen(func: Func) -> Func:
    """Converts every float of a function to double precision; drops casts between floats.

    Raises StackError for ops where this has no meaning: bit patterns of floats, framework calls.
    """
    wide = Func(func.name, _block(func.body, {}), func.level)
    try:
        verify(wide)
    except VerifyError as error:
        raise StackError(f"@{func.name} has no form in double precision: {error.rule}") from error
    return wide


def _block(block: Block, known: dict[Node, Node]) -> Block:
    mapping = known if block.is_open else {}
    for p in block.params:
        mapping[p] = Node(p.op, (), p.attrs, widen_type(p.type))
    for node in block.nodes:
        mapping[node] = _node(node, mapping)
    return remade_block(block, mapping)


def _node(node: Node, mapping: dict[Node, Node]) -> Node:
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
    return Node(node.op, args, attrs, type_, [_block(b, mapping) for b in node.blocks])


def _has_floats(node: Node) -> bool:
    types: list[Type] = [node.type, *(a.type for a in node.args)]
    items = [i for t in types for i in (t.items if isinstance(t, TupleType) else (t,))]
    return any(i.dtype.kind in "fc" for i in items)
