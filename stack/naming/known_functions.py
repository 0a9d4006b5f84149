"""Names of scalar functions that people know, such as GELU, found by their values.

A chain of elementwise ops with one input is evaluated on a grid and compared with known functions.
So the form of the formula does not matter: `x * sigmoid(x)` and `x / (1 + exp(-x))` are both SiLU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from stack.errors import StackError
from stack.ir.builder import make, param
from stack.ir.data import Data
from stack.ir.interpreter import interpret
from stack.ir.node import Block, Node
from stack.ir.traits import converts, is_alias, is_elementwise, is_number
from stack.ir.types import F64, TensorType
from stack.naming.group_flow import GroupFlow

Array = np.ndarray
MOST = 64  # ops of a known function, with its constants
GRID = np.concatenate([np.linspace(-9.7, 9.3, 40), np.linspace(-0.93, 0.97, 24)])
CLOSE = 1e-5  # constants of a program may be rounded to f32
_ROOT = math.sqrt(0.5)


def _erf(x: Array) -> Array:
    return np.array([math.erf(float(v)) for v in x])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "GELU": lambda x: x * (1 + _erf(_ROOT * x)) / 2,
    "tanh GELU": lambda x: x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "quick GELU": lambda x: x * _sigmoid(1.702 * x),
    "SiLU": lambda x: x * _sigmoid(x),
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU²": lambda x: np.maximum(x, 0) ** 2,
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "leaky ReLU": lambda x: np.where(x > 0, x, 0.01 * x),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "SELU": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
    ),
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard tanh": lambda x: np.clip(x, -1, 1),
    "sigmoid": _sigmoid,
    "log sigmoid": lambda x: -np.logaddexp(-x, 0),
    "tanh": np.tanh,
    "square": np.square,
}


@cache
def _tables() -> dict[str, Array]:
    return {name: function(GRID) for name, function in _FUNCTIONS.items()}


def function_name(flow: GroupFlow, start: Node, end: Node) -> str:
    """Returns the name of the scalar function from `start` to `end`; "" if it is not a known one.

    "" too if `end` has another input than `start`, or if ops on the way are not elementwise.
    """
    try:
        values = _sampled(flow, start, end)
    except StackError:
        return ""
    if values is None or values.shape != GRID.shape:
        return ""
    for name, known in _tables().items():
        if np.all(np.abs(values - known) <= CLOSE * (1 + np.abs(known))):
            return name
    return ""


def _sampled(flow: GroupFlow, start: Node, end: Node) -> Array | None:
    """Returns the values of the scalar function on the grid, in double precision."""
    grid = TensorType(F64, (len(GRID),))
    x = param("x", grid)
    made: dict[Node, Node] = {start: x}
    for node in _way(flow, start, end):
        if is_number(node):
            data: Data = node.attrs["value"]
            wide = data.dtype.kind == "f"
            array = data.array.astype(np.float64) if wide else data.array
            dtype = F64 if wide else data.dtype
            made[node] = Node("const", (), {"value": Data(array, dtype)}, TensorType(dtype, ()))
        elif is_alias(node) or (converts(node) and node.tensor.dtype.kind == "f"):
            made[node] = made[flow.args(node)[0]]
        elif is_elementwise(node) and not converts(node):
            made[node] = make(node.op, [made[a] for a in flow.args(node)], node.attrs)
        else:
            return None
    result = made.get(end)
    if result is None or result.type != grid:
        return None
    found: Array = interpret("f", Block([x], [result]), [GRID])
    return found


def _way(flow: GroupFlow, start: Node, end: Node) -> list[Node]:
    """Returns the nodes that `end` is computed from, operands first, without `start` and what only
    `start` needs; nothing if they are more than a known function has.
    """
    order: dict[Node, None] = {}
    pending = [end]
    opened: set[Node] = {start}
    while pending:
        node = pending[-1]
        if node in order or node is start:
            pending.pop()
        elif node in opened:
            order[pending.pop()] = None
        else:
            if len(opened) > MOST:
                return []
            opened.add(node)
            if not is_number(node):
                pending.extend(flow.args(node))
    return list(order)
