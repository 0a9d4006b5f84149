"""One elementwise op as a C++ expression over scalars; vectors apply it to each register."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from stack.errors import StackError
from stack.ir.types import DType


class Unprintable(StackError):
    """An op that no statement here expresses."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the cuda backend cannot print {what}")


_C_TYPES = {
    "bool": "bool", "i8": "signed char", "i16": "short", "i32": "int", "i64": "long long",
    "u8": "unsigned char", "u16": "unsigned short", "u32": "unsigned", "u64": "unsigned long long",
    "f16": "f16", "bf16": "bf16", "f32": "float", "f64": "double",
}  # fmt: skip
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# functions of CUDA's math library; a float's has an f at the end
_FUNCTIONS = {
    "abs": "fabs", "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log",
    "log2": "log2", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf", "erfinv": "erfinv",
    "lgamma": "lgamma", "pow": "pow", "atan2": "atan2", "rem": "fmod",
}  # fmt: skip


def c_type(dtype: DType) -> str:
    """The C++ type of an element."""
    if dtype.name not in _C_TYPES:
        raise Unprintable(f"no code for {dtype}")
    return _C_TYPES[dtype.name]


def convert(kind: str, text: str) -> str:
    """A conversion to a C++ type, whose name may be two words."""
    return f"({kind})({text})" if " " in kind else f"{kind}({text})"


def literal(value: object, dtype: DType) -> str:
    """A constant. Floats print in full; inf and nan by their bits."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.is_integer:
        number = int(np.asarray(value).astype(dtype.numpy))
        if dtype.name == "i64":
            small = -(2**31) < number < 2**31
            return str(number) if small else _wide(number)
        if dtype.name == "i32" and number == -(2**31):
            return "(-2147483647 - 1)"
        return f"{number}ull" if dtype.name == "u64" else f"{number}{'u' * (dtype.kind == 'u')}"
    held = float(np.asarray(value, dtype=dtype.numpy))
    if dtype.bits == 16:
        return f"narrow<{c_type(dtype)}>({_float(held, 'f')})"
    return _float(held, "f" if dtype.name == "f32" else "")


def _wide(number: int) -> str:
    if number == -(2**63):
        return "(-9223372036854775807ll - 1)"
    return f"{number}ll"


def _float(value: float, suffix: str) -> str:
    if math.isfinite(value):
        text = repr(float(np.float32(value))) if suffix else repr(value)
        if suffix:
            text = str(np.float32(value))
        return f"{text}{suffix}" if "." in text or "e" in text else f"{text}.0{suffix}"
    name = "NAN" if math.isnan(value) else "INFINITY"
    sign = "-" if value < 0 else ""
    return f"{sign}{name}_{'F32' if suffix else 'F64'}"


def expression(op: str, source: DType, target: DType, args: Sequence[str]) -> str:
    """The value of one elementwise op.

    Args:
        source: element type of the operands (of the branches, for a select).
        target: element type of the result.

    Raises:
        Unprintable: naming the op.
    """
    special = _SPECIAL.get(op)
    if special is not None:
        return special(source, target, args)
    if op in _COMPARE:
        return f"{_wide_float(args[0], source)} {_COMPARE[op]} {_wide_float(args[1], source)}"
    if source.is_float:
        return _float_op(op, source, args)
    if source.kind == "b":
        return _bool_op(op, args)
    return _integer_op(op, source, args)


def _wide_float(arg: str, dtype: DType) -> str:
    return f"widen({arg})" if dtype.is_float and dtype.bits == 16 else arg


def _float_op(op: str, dtype: DType, args: Sequence[str]) -> str:
    if dtype.bits == 16:
        from stack.ir.types import F32

        inner = _float_op(op, F32, [f"widen({a})" for a in args])
        return inner if op.startswith("is") else f"narrow<{c_type(dtype)}>({inner})"
    if op in ("add", "sub", "mul"):
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op == "div":
        return f"{args[0]} / {args[1]}"
    if op == "neg":
        return f"-{args[0]}"
    if op in ("max", "min", "sign", "sigmoid"):
        return f"{op}_of({', '.join(args)})"
    if op == "isnan":
        return f"{args[0]} != {args[0]}"
    if op == "isfinite":
        return f"fabs({args[0]}) < INFINITY_F{dtype.bits}"
    if op in _FUNCTIONS:
        suffix = "f" if dtype.name == "f32" else ""
        return f"{_FUNCTIONS[op]}{suffix}({', '.join(args)})"
    raise Unprintable(f"no code for {op} of {dtype}")


def _bool_op(op: str, args: Sequence[str]) -> str:
    signs = {"add": "||", "or": "||", "max": "||", "mul": "&&", "and": "&&", "min": "&&"}
    if op == "not":
        return f"!{args[0]}"
    if op == "xor":
        return f"{args[0]} != {args[1]}"
    if op in signs:
        return f"{args[0]} {signs[op]} {args[1]}"
    raise Unprintable(f"no code for {op} of bool")


def _integer_op(op: str, dtype: DType, args: Sequence[str]) -> str:
    t = c_type(dtype)
    if op in _INFIX:
        # what overflows wraps: unsigned arithmetic says so
        unsigned = f"unsigned {t.removeprefix('signed ')}" if dtype.kind == "i" else t
        if op in ("and", "or", "xor"):
            return convert(t, f"{args[0]} {_INFIX[op]} {args[1]}")
        first, second = f"({unsigned})({args[0]})", f"({unsigned})({args[1]})"
        return convert(t, f"{first} {_INFIX[op]} {second}")
    if op == "neg":
        return _integer_op("sub", dtype, ["0", args[0]])
    if op == "not":
        return convert(t, f"~{args[0]}")
    if op in ("max", "min"):
        sign = ">" if op == "max" else "<"
        return f"({args[0]} {sign} {args[1]} ? {args[0]} : {args[1]})"
    if op in ("div", "rem", "shl", "shr", "pow"):
        return f"{op}_of<{t}>({', '.join(args)})"
    if op == "abs":
        minus = _integer_op("neg", dtype, args)
        return args[0] if dtype.kind == "u" else f"({args[0]} < 0 ? {minus} : {args[0]})"
    if op == "sign":
        return convert(t, f"({args[0]} > 0) - ({args[0]} < 0)")
    raise Unprintable(f"no code for {op} of {dtype}")


def _cast(source: DType, target: DType, args: Sequence[str]) -> str:
    x = args[0]
    if source == target:
        return x
    if target.kind == "b":
        return f"{_wide_float(x, source)} != 0"
    if source.is_float and source.bits == 16:
        if target.name == "f32":
            return f"widen({x})"
        from stack.ir.types import F32

        return _cast(F32, target, [f"widen({x})"])
    if target.is_float and target.bits == 16:
        return f"narrow<{c_type(target)}>({x})"
    if source.is_float and target.bits < 32:  # narrow integers wrap, as they do in C through int
        return convert(c_type(target), f"int({x})")
    return convert(c_type(target), x)


def _select(source: DType, target: DType, args: Sequence[str]) -> str:
    return f"{args[0]} ? {args[1]} : {args[2]}"


def _fma(source: DType, target: DType, args: Sequence[str]) -> str:
    if source.name not in ("f32", "f64"):
        raise Unprintable(f"no code for fma of {source}")
    return f"fma{'f' if source.name == 'f32' else ''}({', '.join(args)})"


def _bitcast(source: DType, target: DType, args: Sequence[str]) -> str:
    return args[0] if source == target else f"bits_as<{c_type(target)}>({args[0]})"


_SPECIAL: dict[str, Callable[[DType, DType, Sequence[str]], str]] = {
    "cast": _cast,
    "select": _select,
    "fma": _fma,
    "bitcast": _bitcast,
}
