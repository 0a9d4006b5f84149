"""Evaluates a function node by node, in NumPy (the reference) or another array namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.data import round_bf16
from stack.ir.dim import INF, Dim, Expr, Symbol, equal, substitute, symbols
from stack.ir.node import Block, Func, Node
from stack.ir.ops import lookup
from stack.ir.printer import print_node
from stack.ir.space import Array, ArraySpace, NumpySpace
from stack.ir.types import BF16, LONG_NAMES, TensorType, TupleType, type_symbols

Observe = Callable[[Node, Array, Sequence[Array]], None]  # a node, its value, those of its operands


def interpret(func: Func, *arrays: Any) -> Any:
    """Evaluates a function on NumPy arrays, checked against the parameter types.

    bf16 values are float32 arrays that hold bf16 values (ml_dtypes arrays are accepted too). Size
    symbols are bound from the shapes of the arguments. Returns one array, or a tuple.

    Raises:
        TypeError: wrong number of arguments, or an element type that differs from the parameter's.
        ValueError: a shape that differs from the parameter's.
    """
    args = [np.asarray(a) for a in arrays]
    values = bind_shapes(func, [a.shape for a in args])
    bound = func.bind(values) if values else func
    ready: list[Array] = []
    for p, a in zip(bound.params, args, strict=True):
        if p.dtype is BF16 and a.dtype.name in ("bfloat16", "float32"):
            ready.append(round_bf16(a.astype(np.float32)))
        elif a.dtype == np.dtype(p.dtype.numpy):
            ready.append(a)
        elif LONG_NAMES.get(a.dtype.name) is p.dtype:
            ready.append(np.ascontiguousarray(a).view(p.dtype.numpy).reshape(a.shape))
        else:
            raise TypeError(f"argument %{p.attrs['name']} is {p.type}, got {a.dtype.name} values")
    results = evaluate(bound.body, ready, NumpySpace())
    return results[0] if len(results) == 1 else results


def bind_shapes(func: Func, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Values of size symbols from argument shapes; checks every shape.

    Raises TypeError or ValueError, which name the argument.
    """
    if len(shapes) != len(func.params):
        names = ", ".join(str(p.attrs["name"]) for p in func.params)
        count = len(func.params)
        raise TypeError(f"@{func.name} takes {count} arguments ({names}), got {len(shapes)}")
    values: dict[str, int] = {}
    for p, shape in zip(func.params, shapes, strict=True):
        if len(shape) != p.tensor.rank:
            raise _misfit(p, shape)
        for dim, size in zip(p.shape, shape, strict=True):
            solved = _solve(dim, int(size))
            if solved is not None:
                values.setdefault(*solved)
    for p, shape in zip(func.params, shapes, strict=True):
        for dim, size in zip(p.shape, shape, strict=True):
            if equal(substitute(dim, values), int(size)) is not True:
                raise _misfit(p, shape)
            for s in symbols(dim):
                if not s.low <= values[s.name] <= s.high or values[s.name] % s.multiple:
                    raise _misfit(p, shape)
    return values


def _misfit(p: Node, shape: Sequence[int]) -> ValueError:
    ranges: list[str] = []
    for s in sorted(type_symbols(p.type), key=str):
        low = "" if s.low == -INF else s.low
        high = "" if s.high == INF else s.high
        multiple = f", a multiple of {s.multiple}" if s.multiple != 1 else ""
        ranges.append(f"{s.name} in {low}..{high}{multiple}")
    where = f" with {', '.join(ranges)}" if ranges else ""
    return ValueError(f"argument %{p.attrs['name']} is {p.type}{where}, got shape {list(shape)}")


def _solve(dim: Dim, size: int) -> tuple[str, int] | None:
    """Solves `dim = size` for the one symbol of the size expression `dim`. Returns the symbol's
    name and value; None unless `dim` is linear in exactly one symbol.
    """
    rest = size
    factor: tuple[str, int] | None = None
    for monomial, coefficient in dim.terms if isinstance(dim, Expr) else ():
        if not monomial:
            rest -= coefficient
        elif factor is None and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            factor = monomial[0].name, coefficient
        else:
            return None
    return (factor[0], rest // factor[1]) if factor is not None else None


def evaluate(
    block: Block,
    args: Sequence[Array],
    space: ArraySpace,
    observe: Observe | None = None,
    outer: dict[Node, Array] | None = None,
) -> tuple[Array, ...]:
    """Returns the values of a block's results.

    Args:
        args: one value for each parameter.
        space: the semantics of ops.
        observe: called with every node, its value, and the values of its operands.
        outer: values of the enclosing block, for open blocks.
    """
    # an open block shares the table: all its nodes depend on its variables, so none is stale
    env: dict[Node, Array] = outer if outer is not None else {}
    env.update(zip(block.params, args, strict=True))
    with np.errstate(all="ignore"):
        for node in block.nodes:
            env[node] = evaluate_node(node, env, space, observe)
            if observe is not None:
                observe(node, env[node], [env[a] for a in node.args])
    return tuple(env[r] for r in block.results)


def evaluate_node(
    node: Node, env: dict[Node, Array], space: ArraySpace, observe: Observe | None = None
) -> Array:
    """Returns the value of one node, a tuple if it has several results; `env` has its operands."""
    args = [env[a] for a in node.args]
    op = lookup(node.op)

    def run(block: Block, values: Sequence[Array]) -> tuple[Array, ...]:
        return evaluate(block, values, space, observe, env if block.is_open else None)

    if op.evaluate is not None:
        return _settle(node, op.evaluate(space, node, run, *args), space)
    if node.op == "item":
        return args[0][node.attrs["index"]]
    if node.op in ("call", "fusion"):
        results = run(node.blocks[0], args)
        return results if isinstance(node.type, TupleType) else results[0]
    method = getattr(space, f"op_{node.op}", None)
    if op.kind == "elementwise":
        return _settle(node, space.elementwise(node, *args), space)
    if method is None:
        raise StackError(f"the interpreter does not implement op {node.op!r}: {print_node(node)}")
    if node.op in ("cond", "while"):
        results = method(node, run, *args)
        return results if isinstance(node.type, TupleType) else results[0]
    return _settle(node, method(node, *args), space)


def _settle(node: Node, value: Array, space: ArraySpace) -> Array:
    if isinstance(node.type, TensorType):
        return space.settle(value, node.type)
    return tuple(space.settle(v, t) for v, t in zip(value, node.type.items, strict=True))
