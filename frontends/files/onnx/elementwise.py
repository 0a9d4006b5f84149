"""Lowerings of elementwise ONNX ops."""

from __future__ import annotations

from functools import reduce

import numpy as np
import onnx

from stack.frontends.files.onnx.lowering import TABLE, Call, lowers
from stack.ir.data import Data
from stack.ir.node import Node
from stack.ir.types import BOOL, DType, dtype_of

UNARY = {
    "Neg": "neg", "Abs": "abs", "Sign": "sign", "Not": "not", "Floor": "floor", "Ceil": "ceil",
    "Round": "round", "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Sin": "sin", "Cos": "cos",
    "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Sigmoid": "sigmoid",
    "Erf": "erf", "IsNaN": "isnan", "BitwiseNot": "not",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor",
    "BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor", "Equal": "eq", "Less": "lt",
    "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
}  # fmt: skip
VARIADIC = {"Max": "max", "Min": "min", "Sum": "add"}


def _unary(name: str) -> None:
    TABLE[name] = lambda call: call.b.op(UNARY[name], [call.input(0)])


def _binary(name: str) -> None:
    TABLE[name] = lambda call: call.b.op(BINARY[name], call.together(call.input(0), call.input(1)))


def _variadic(name: str) -> None:
    def lowering(call: Call) -> Node:
        values = call.together(*(call.input(i) for i in range(len(call.inputs))))
        return reduce(lambda x, y: call.b.op(VARIADIC[name], [x, y]), values)

    TABLE[name] = lowering


for _name in UNARY:
    _unary(_name)
for _name in BINARY:
    _binary(_name)
for _name in VARIADIC:
    _variadic(_name)


@lowers("Mean")
def mean(call: Call) -> Node:
    """The mean of all inputs, by element."""
    total = TABLE["Sum"](call)
    assert isinstance(total, Node), "a sum is one value"
    return call.b.div(total, float(len(call.inputs)))


@lowers("Pow")
def power(call: Call) -> Node:
    """The exponent may have another element type than the base, which is that of the result."""
    x, y = call.input(0), call.input(1)
    return call.b.pow(*call.together(x, call.cast(y, x.dtype)))


@lowers("Mod")
def modulo(call: Call) -> Node:
    """The remainder with the sign of the divisor; with `fmod`, of the dividend."""
    x, y = call.together(call.input(0), call.input(1))
    rest = call.b.rem(x, y)
    if call.attrs.get("fmod") or x.dtype.kind == "u":
        return rest
    zero = call.full(0, rest)
    other = call.b.ne(call.b.lt(rest, zero), call.b.lt(y, zero))
    moved = call.b.and_(other, call.b.ne(rest, zero))
    return call.b.select(moved, call.b.add(rest, y), rest)


@lowers("Reciprocal")
def reciprocal(call: Call) -> Node:
    x = call.input(0)
    return call.b.div(call.full(1, x), x)


@lowers("Relu")
def relu(call: Call) -> Node:
    x = call.input(0)
    return call.b.max(x, call.full(0, x))


@lowers("LeakyRelu", "PRelu")
def leaky(call: Call) -> Node:
    """x where it is positive, else a multiple of it."""
    x = call.input(0)
    slope = call.input(1) if call.op == "PRelu" else call.full(call.attrs.get("alpha", 0.01), x)
    x, slope = call.together(x, slope)
    return call.b.select(call.b.lt(x, call.full(0, x)), call.b.mul(x, slope), x)


@lowers("Gelu")
def gelu(call: Call) -> Node:
    """By erf, or by tanh if attribute `approximate` says so."""
    x, b = call.input(0), call.b
    if call.attrs.get("approximate", "none") == "tanh":
        cube = b.mul(b.mul(x, x), x)
        inner = b.mul(b.add(x, b.mul(cube, 0.044715)), float(np.sqrt(2 / np.pi)))
        return b.mul(b.mul(x, 0.5), b.add(b.tanh(inner), 1.0))
    return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, float(np.sqrt(0.5)))), 1.0))


@lowers("Clip")
def clip(call: Call) -> Node:
    """Bounds are attributes before opset 11, then optional inputs."""
    x = call.input(0)
    for number, name, op in ((1, "min", "max"), (2, "max", "min")):
        if name in call.attrs:
            x = call.b.op(op, [x, call.full(call.attrs[name], x)])
        elif call.has(number):
            x = call.b.op(op, call.together(x, call.input(number)))
    return x


@lowers("Where")
def where(call: Call) -> Node:
    return call.b.select(*call.together(*(call.input(i) for i in range(3))))


@lowers("Cast")
def cast(call: Call) -> Node:
    """Converts to the element type of attribute `to`."""
    return call.cast(call.input(0), element_type(int(call.attrs["to"]), call))


@lowers("IsInf")
def is_infinite(call: Call) -> Node:
    x, b = call.input(0), call.b
    found = [
        b.eq(x, call.full(sign * np.inf, x))
        for sign, name in ((1, "detect_positive"), (-1, "detect_negative"))
        if call.attrs.get(name, 1)
    ]
    return reduce(b.or_, found, call.full(False, b.isnan(x)))


@lowers("Identity", "Dropout")
def identity(call: Call) -> list[Node]:
    """Dropout keeps all values in inference; its mask is then true everywhere."""
    x = call.input(0)
    if call.op == "Dropout" and call.has(2) and call.array(2).any():
        raise call.fail("it is in training mode; export the model with training off")
    mask = [call.full(True, call.b.isnan(x))] if call.outputs > 1 else []
    return [x, *mask]


@lowers("Constant")
def constant(call: Call) -> Node:
    """The value is one of several attributes, by its type."""
    for name, value in call.attrs.items():
        if name.startswith("value"):
            array = np.asarray(value)
            if array.dtype == np.float64 and name != "value":
                array = array.astype(np.float32)
            return array_constant(array, call)
    raise call.fail("it has no value")


def array_constant(array: np.ndarray, call: Call) -> Node:
    """Returns an array as a constant."""
    try:
        dtype = dtype_of(array)
    except TypeError as error:
        raise call.fail(str(error)) from error
    data = Data(array.astype(dtype.numpy) if array.dtype.name == "bfloat16" else array, dtype)
    return call.b.op("const", [], {"value": data})


def element_type(number: int, call: Call) -> DType:
    """Returns the element type for a number of onnx.TensorProto.DataType."""
    if number == onnx.TensorProto.BOOL:
        return BOOL
    try:
        return dtype_of(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(number)))
    except (KeyError, TypeError) as error:
        name = onnx.TensorProto.DataType.Name(number)  # pyright: ignore[reportArgumentType]
        raise call.fail(f"there is no element type for {name}") from error
