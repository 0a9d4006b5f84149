"""Lowerings of elementwise StableHLO ops, and of constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stack.frontends.files.stablehlo.lowering import TABLE, Call, lowers, number_like
from stack.ir.data import Data
from stack.ir.node import Node

SAME = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "remainder": "rem",
    "maximum": "max", "minimum": "min", "power": "pow", "atan2": "atan2", "and": "and", "or": "or",
    "xor": "xor", "not": "not", "negate": "neg", "abs": "abs", "sign": "sign", "floor": "floor",
    "ceil": "ceil", "round_nearest_even": "round", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "exponential": "exp", "exponential_minus_one": "expm1", "log": "log", "log_plus_one": "log1p",
    "logistic": "sigmoid", "tanh": "tanh", "sine": "sin", "cosine": "cos", "tan": "tan",
    "is_finite": "isfinite", "shift_left": "shl", "shift_right_arithmetic": "shr",
    "erf": "erf", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "lgamma": "lgamma", "digamma": "digamma",
    "erf_inv": "erfinv",
}  # fmt: skip
COMPARES = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def _same(op: str) -> Callable[[Call], Node]:
    return lambda call: call.b.op(op, call.args)


TABLE.update({name: _same(op) for name, op in SAME.items()})


@lowers("compare")
def compare(call: Call) -> Node:
    text = str(call.attr("comparison_direction"))
    direction = next(d for d in COMPARES if f" {d}>" in text)
    return call.b.op(COMPARES[direction], call.args)


@lowers("select")
def select(call: Call) -> Node:
    return call.b.select(*call.args)


@lowers("clamp")
def clamp(call: Call) -> Node:
    low, x, high = call.args
    return call.b.min(call.b.max(x, low), high)


@lowers("convert")
def convert(call: Call) -> Node:
    (x,) = call.args
    return x if x.type == call.type else call.b.cast(x, type=call.type)


@lowers("bitcast_convert")
def bitcast(call: Call) -> Node:
    return call.b.bitcast(*call.args, type=call.type)


@lowers("cbrt")
def cube_root(call: Call) -> Node:
    """With the sign of x."""
    (x,) = call.args
    root = call.b.pow(call.b.abs(x), number_like(call, 1 / 3, x))
    return call.b.mul(call.b.sign(x), root)


@lowers("square")
def square(call: Call) -> Node:
    return call.b.mul(call.args[0], call.args[0])


@lowers("erfc")
def erfc(call: Call) -> Node:
    return call.b.sub(number_like(call, 1, call.args[0]), call.b.erf(call.args[0]))


@lowers("optimization_barrier")
def barrier(call: Call) -> list[Node]:
    return [*call.args]


@lowers("constant")
def constant(call: Call) -> Node:
    """The elements of a dense attribute; one that is repeated is stored once."""
    value, kind = call.attr("value"), call.type
    try:
        held = np.asarray(value.get_splat_value().value if value.is_splat else np.array(value))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise call.fail(f"a constant of {kind} is not read: {error}") from error
    shape = tuple(int(s) for s in kind.shape if isinstance(s, int))
    array = held.astype(kind.dtype.numpy)
    if value.is_splat and shape:
        scalar = call.b.op("const", [], {"value": Data(array.reshape(()), kind.dtype)})
        return call.b.broadcast(scalar, axes=(), type=kind)
    return call.b.op("const", [], {"value": Data(array.reshape(shape), kind.dtype)})
