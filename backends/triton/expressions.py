"""Elementwise ops as Triton expressions."""

from __future__ import annotations

from collections.abc import Callable

from stack.ir.node import Node
from stack.ir.types import STORAGE_TYPES, DType

TYPES = {
    "bool": "tl.int1",
    "i8": "tl.int8",
    "i16": "tl.int16",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "u8": "tl.uint8",
    "u16": "tl.uint16",
    "u32": "tl.uint32",
    "u64": "tl.uint64",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f64": "tl.float64",
    **{name: f"tl.{d.numpy}" for name, d in STORAGE_TYPES.items()},
}
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "and": "&",
    "or": "|",
    "xor": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
# functions of Triton's language; for f64, those it has only for f32 are called from libdevice
LANGUAGE = {
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "erf": "tl.erf",
    "floor": "tl.floor",
    "ceil": "tl.ceil",
    "sqrt": "tl.sqrt_rn",
    "rsqrt": "tl.rsqrt",
    "abs": "tl.abs",
}
LIBDEVICE = {
    "round": "rint",
    "trunc": "trunc",
    "expm1": "expm1",
    "log1p": "log1p",
    "tan": "tan",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "erfinv": "erfinv",
    "lgamma": "lgamma",
    "atan2": "atan2",
}
REFUSED = ("digamma",)


# Triton's own are off by several ulp; exp by more for large operands
EXACT = {
    "exp": "libdevice.exp({0})",
    "div": "tl.div_rn({0}, {1})",
    "sigmoid": "tl.div_rn(1.0, 1.0 + libdevice.exp(-{0}))",
}
# in the epilogue of a matmul: fewer instructions while the tensor cores wait
SHORT = {
    "erf": "erf_ratio({0})",
    "tanh": "brief_tanh({0})",
    "sigmoid": "inverse(1.0 + tl.exp2({0} * -1.4426950408889634))",
}


def expression(node: Node, args: list[str], is_exact: bool = False, has_dot: bool = False) -> str:
    """Returns the expression of an elementwise node, given those of its operands.

    Args:
        is_exact: errors of a few ulp in f32 are not acceptable.
        has_dot: the node is in the epilogue of a matmul: use shorter functions unless is_exact.
    """
    op, dtype = node.op, node.args[0].dtype
    if dtype.kind == "b" and op in ("add", "mul"):
        return f"{args[0]} {'|' if op == 'add' else '&'} {args[1]}"
    if op in INFIX:
        return f"{args[0]} {INFIX[op]} {args[1]}"
    if dtype.name == "f32":
        chosen = EXACT if is_exact else SHORT if has_dot else {}
        if op in chosen:
            return chosen[op].format(*args)
    if dtype.name == "f32" and op in ("tanh", "erf"):
        return f"{op}_f32({args[0]})"
    if op in LANGUAGE and (dtype.name != "f64" or op in ("abs", "floor", "ceil")):
        return f"{LANGUAGE[op]}({args[0]})"
    if op in LANGUAGE:
        return f"libdevice.{op}({args[0]})"
    if op in LIBDEVICE:
        return f"libdevice.{LIBDEVICE[op]}({', '.join(args)})"
    return _SPECIAL[op](dtype, args)


def _div(dtype: DType, args: list[str]) -> str:
    a, b = args
    if dtype.is_float:
        return f"{a} / {b}"
    return _unless_zero(
        f"{a} // {{}}", b, "-1" if dtype.kind == "i" else str((1 << dtype.bits) - 1)
    )


def _rem(dtype: DType, args: list[str]) -> str:
    a, b = args
    if dtype.is_float:
        return f"libdevice.fmod({a}, {b})"
    return _unless_zero(f"{a} % {{}}", b, a)


def _unless_zero(text: str, by: str, other: str) -> str:
    """An integer quotient or remainder; `other` for division by 0."""
    if by.isdigit() and by != "0":
        return text.format(by)
    safe = text.format(f"tl.where({by} == 0, 1, {by})")
    return f"tl.where({by} == 0, {other}, {safe})"


def _shift(sign: str) -> Callable[[DType, list[str]], str]:
    """A shift by the width or more, or by a negative amount, shifts all bits out."""

    def make(dtype: DType, args: list[str]) -> str:
        a, b = args
        last = dtype.bits - 1
        if b.isdigit() and int(b) <= last:
            return f"{a} {sign} {b}"
        inside = f"({b} >= 0) & ({b} <= {last})"
        shifted = f"{a} {sign} tl.where({inside}, {b}, {last})"
        if sign == ">>" and dtype.kind == "i":
            return shifted  # copies of the sign
        return f"tl.where({inside}, {shifted}, 0)"

    return make


def _extremum(name: str) -> Callable[[DType, list[str]], str]:
    def make(dtype: DType, args: list[str]) -> str:
        if dtype.kind == "b":
            return f"{args[0]} {'|' if name == 'maximum' else '&'} {args[1]}"
        nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_float else ""
        return f"tl.{name}({args[0]}, {args[1]}{nan})"

    return make


def _sign(dtype: DType, args: list[str]) -> str:
    (x,) = args
    sign = f"({x} > 0).to({TYPES[dtype.name]}) - ({x} < 0).to({TYPES[dtype.name]})"
    return f"tl.where({x} == {x}, {sign}, {x})" if dtype.is_float else sign


_SPECIAL: dict[str, Callable[[DType, list[str]], str]] = {
    "neg": lambda _, a: f"-{a[0]}",
    "not": lambda d, a: f"{a[0]} == 0" if d.kind == "b" else f"~{a[0]}",
    "div": _div,
    "rem": _rem,
    "pow": lambda _, a: f"libdevice.pow({a[0]}, {a[1]})",
    "max": _extremum("maximum"),
    "min": _extremum("minimum"),
    "sign": _sign,
    "sigmoid": lambda _, a: f"1.0 / (1.0 + tl.exp(-{a[0]}))",
    "isnan": lambda _, a: f"{a[0]} != {a[0]}",
    "isfinite": lambda _, a: f'tl.abs({a[0]}) < float("inf")',
    "shl": _shift("<<"),
    "shr": _shift(">>"),
    "select": lambda _, a: f"tl.where({a[0]}, {a[1]}, {a[2]})",
}
