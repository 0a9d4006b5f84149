"""Prints an elementwise op as a C++ expression over scalars; vectors apply it per register."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stack.errors import StackError
from stack.ir.types import STORAGE_TYPES, DType


class Unprintable(StackError):
    """Raised for an op that the cuda backend has no code for."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the cuda backend cannot print {what}")


_C_TYPES = {
    "bool": "bool", "i8": "signed char", "i16": "short", "i32": "int", "i64": "long long",
    "u8": "unsigned char", "u16": "unsigned short", "u32": "unsigned", "u64": "unsigned long long",
    "f16": "f16", "bf16": "bf16", "f32": "float", "f64": "double",
    **{n: f"{'un' * (d.numpy[0] == 'u')}signed char" for n, d in STORAGE_TYPES.items()},
}  # fmt: skip
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# functions of CUDA's math library; the float version has the suffix f
_FUNCTIONS = {
    "abs": "fabs", "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exp", "expm1": "expm1", "log": "log",
    "log2": "log2", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf", "erfinv": "erfinv",
    "lgamma": "lgamma",
}  # fmt: skip
_FUNCTIONS_OF_TWO = {"pow": "pow", "atan2": "atan2", "rem": "fmod"}
# an op as a template: {0} and {1} are operands, {f} is "f" for float, {bits} the width
_FLOAT = {
    # the compiler does not fuse these to FMA
    "add alone": "__{kind}add_rn({0}, {1})", "sub alone": "__{kind}sub_rn({0}, {1})",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "max": "max_of({0}, {1})", "min": "min_of({0}, {1})", "sign": "sign_of({0})",
    "exp2": "exp2_of({0})", "sigmoid": "sigmoid_of({0})", "isnan": "{0} != {0}",
    "isfinite": "fabs({0}) < INFINITY_F{bits}",
    **{op: name + "{f}({0})" for op, name in _FUNCTIONS.items()},
    **{op: name + "{f}({0}, {1})" for op, name in _FUNCTIONS_OF_TWO.items()},
}  # fmt: skip
# if all memory is 16-bit: faster, off by a few ulp of f32
_BRIEF = {
    "div": "quotient({0}, {1})", "exp": "exp2_of({0} * 1.4426950408889634f)",
    "sigmoid": "inverse_of(1.0f + exp2_of({0} * -1.4426950408889634f))",
}  # fmt: skip
_BOOL = {
    "add": "{0} || {1}", "or": "{0} || {1}", "max": "{0} || {1}", "mul": "{0} && {1}",
    "and": "{0} && {1}", "min": "{0} && {1}", "xor": "{0} != {1}", "not": "!{0}",
}  # fmt: skip
# for integers, {t} is the type and {u} its unsigned version; overflow wraps
_INTEGER = {
    "max": "({0} > {1} ? {0} : {1})", "min": "({0} < {1} ? {0} : {1})",
    "div": "div_of<{t}>({0}, {1})", "rem": "rem_of<{t}>({0}, {1})", "pow": "pow_of<{t}>({0}, {1})",
    "shl": "shl_of<{t}>({0}, {1})", "shr": "shr_of<{t}>({0}, {1})",
}  # fmt: skip
_CONVERTED = {
    "add": "({u})({0}) + ({u})({1})", "sub": "({u})({0}) - ({u})({1})",
    "mul": "({u})({0}) * ({u})({1})", "neg": "({u})(0) - ({u})({0})", "not": "~{0}",
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "sign": "({0} > 0) - ({0} < 0)",
}  # fmt: skip


def c_type(dtype: DType) -> str:
    """The C++ type of an element."""
    if dtype.name not in _C_TYPES:
        raise Unprintable(f"no code for {dtype}")
    return _C_TYPES[dtype.name]


def convert(kind: str, text: str) -> str:
    """Returns C++ text that casts the expression `text` to the type `kind`.

    A type of two words, such as `unsigned char`, needs parentheses.
    """
    return f"({kind})({text})" if " " in kind else f"{kind}({text})"


def literal(value: object, dtype: DType) -> str:
    """A C++ constant. Floats are printed in full; inf and nan as named constants."""
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


def expression(
    op: str, source: DType, target: DType, args: Sequence[str], is_exact: bool = True
) -> str:
    """Returns the C++ expression of one elementwise op.

    Args:
        op: its name; "add alone" and "sub alone" round their result, with no product fused in.
        source: element type of the operands (for a select, of its branches).
        target: element type of the result.
        is_exact: True if errors of a few ulp in f32 are not acceptable.

    Raises:
        Unprintable: names the op.
    """
    if not is_exact and source.name == "f32" and op in _BRIEF:
        return _BRIEF[op].format(*args)
    special = _SPECIAL.get(op)
    if special is not None:
        return special(source, target, args)
    if op in _COMPARE:
        return f"{_wide_float(args[0], source)} {_COMPARE[op]} {_wide_float(args[1], source)}"
    if source.is_float:
        return _float_op(op, source, args)
    if source.kind == "b":
        return _text(_BOOL, op, source).format(*args)
    return _integer_op(op, source, args)


def _wide_float(arg: str, dtype: DType) -> str:
    return f"widen({arg})" if dtype.is_float and dtype.bits == 16 else arg


def _float_op(op: str, dtype: DType, args: Sequence[str]) -> str:
    if dtype.bits == 16:
        from stack.ir.types import F32

        inner = _float_op(op, F32, [f"widen({a})" for a in args])
        return inner if op.startswith("is") else f"narrow<{c_type(dtype)}>({inner})"
    suffix = "f" if dtype.name == "f32" else ""
    kind = "f" if suffix else "d"
    return _text(_FLOAT, op, dtype).format(*args, f=suffix, kind=kind, bits=dtype.bits)


def _text(table: Mapping[str, str], op: str, dtype: DType) -> str:
    if op not in table:
        raise Unprintable(f"no code for {op} of {dtype}")
    return table[op]


def _integer_op(op: str, dtype: DType, args: Sequence[str]) -> str:
    t = c_type(dtype)
    unsigned = f"unsigned {t.removeprefix('signed ')}" if dtype.kind == "i" else t
    if op == "abs":
        minus = _integer_op("neg", dtype, args)
        return args[0] if dtype.kind == "u" else f"({args[0]} < 0 ? {minus} : {args[0]})"
    if op in _CONVERTED:
        return convert(t, _CONVERTED[op].format(*args, u=unsigned))
    return _text(_INTEGER, op, dtype).format(*args, t=t)


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
    if source.is_float and target.bits < 32:  # wrap like C: convert through int
        return convert(c_type(target), f"int({x})")
    return convert(c_type(target), x)


def _select(source: DType, target: DType, args: Sequence[str]) -> str:
    return f"{args[0]} ? {args[1]} : {args[2]}"


def _fma(source: DType, target: DType, args: Sequence[str]) -> str:
    if source.name not in ("f32", "f64"):
        product = expression("mul", source, source, args[:2])
        return expression("add", source, target, [f"({product})", args[2]])
    return f"fma{'f' if source.name == 'f32' else ''}({', '.join(args)})"


def _bitcast(source: DType, target: DType, args: Sequence[str]) -> str:
    return args[0] if source == target else f"bits_as<{c_type(target)}>({args[0]})"


_SPECIAL: dict[str, Callable[[DType, DType, Sequence[str]], str]] = {
    "cast": _cast,
    "select": _select,
    "fma": _fma,
    "bitcast": _bitcast,
}
_TEMPLATES = [t for table in (_FLOAT, _BRIEF, _BOOL, _INTEGER, _CONVERTED) for t in table.values()]
# functions that expressions call; a value must not shadow them
FUNCTIONS = frozenset(
    word
    for template in _TEMPLATES
    for f, kind in (("", "d"), ("f", "f"))
    for word in re.findall(
        r"[A-Za-z_]\w*", template.format("", "", f=f, kind=kind, t="", u="", bits=32)
    )
) | {"fma", "fmaf", "widen", "narrow", "bits_as", "INFINITY_F64", "NAN_F32", "NAN_F64"}
