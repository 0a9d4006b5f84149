"""Double precision version of a program, as the reference for errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.errors import StackError, VerifyError
from stack.hosted.nodes import check_calls
from stack.ir.builder import remade_block
from stack.ir.data import Data
from stack.ir.node import Block, Func, Node
from stack.ir.types import BF16, DTYPES, F64, DType, TensorType, TupleType, Type
from stack.ir.verifier import verify
from stack.rewrite.check import as_list
from stack.rewrite.pipeline import Pipeline

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


def held(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Converts a storage array to the interpreter's format: bf16 bit patterns become float32."""
    if dtype is not BF16:
        return array
    return (np.ascontiguousarray(array).astype(np.uint32) << 16).view(np.float32)


def reference(func: Func, storage: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the results in double precision on storage arrays, by the NumPy interpreter.

    Raises RuleError for integer arguments that violate an operator's limits.
    """
    sizes = {s.name for s in func.symbols}
    if sizes:
        raise StackError(f"@{func.name} has symbolic sizes: {', '.join(sorted(sizes))}")
    wide = widen(
        Pipeline("hosted").run(func, verify=False).func
    )  # replaces operators by their decompositions
    inputs = [
        held(a, p.dtype).astype(widen_dtype(p.dtype).numpy)
        for a, p in zip(storage, func.params, strict=True)
    ]
    check_calls(func, inputs)
    return [np.asarray(r) for r in as_list(wide.interpret(*inputs))]


def error_of(
    expected: Sequence[np.ndarray], found: Sequence[np.ndarray], types: Sequence[TensorType]
) -> float:
    """Returns the largest error of any result, relative to the largest value of that result.

    `found` are storage arrays. Infinite if shapes, infinities, nans or integers differ.
    """
    if len(expected) != len(found):
        return math.inf
    worst = 0.0
    for want, have, type_ in zip(expected, found, types, strict=True):
        worst = max(worst, _error(want, held(have, type_.dtype), type_.dtype))
    return worst


def _error(want: np.ndarray, have: np.ndarray, dtype: DType) -> float:
    if want.shape != have.shape:
        return math.inf
    if dtype.kind not in "fc":
        return 0.0 if np.array_equal(want, have) else math.inf
    wide: Any = np.complex128 if dtype.kind == "c" else np.float64
    a, b = want.astype(wide), have.astype(wide)
    finite = np.isfinite(a)
    same = np.isnan(a) & np.isnan(b)
    with np.errstate(invalid="ignore"):
        same |= a == b
        if not np.all(same | (finite & np.isfinite(b))):
            return math.inf
        if not finite.any():
            return 0.0
        scale = max(float(np.abs(a[finite]).max()), 1e-30)
        return float(np.abs(np.where(same, 0, a - b)).max()) / scale
