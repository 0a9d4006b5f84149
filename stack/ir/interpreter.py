"""Runs a function node by node: in NumPy as the reference, or in another array namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir import ops
from stack.ir.data import round_bf16
from stack.ir.dim import Dim, Expr, Symbol, equal
from stack.ir.node import Block, Func, Node
from stack.ir.printer import print_node
from stack.ir.space import Array, ArraySpace, NumpySpace
from stack.ir.types import BF16, TensorType, TupleType

Observe = Callable[[Node, Array], None]


def interpret(func: Func, *arrays: Any) -> Any:
    """Run on NumPy arrays, checked against the parameter types.

    bf16 values are float32 arrays that hold bf16 values (ml_dtypes arrays are taken too).
    Size symbols are bound from the shapes of the arguments. Returns one array, or a tuple.

    Raises:
        TypeError: wrong number of arguments, or an element type that is not the parameter's.
        ValueError: a shape that is not the parameter's.
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
        else:
            raise TypeError(f"argument %{p.attrs['name']} is {p.type}, got {a.dtype.name} values")
    results = evaluate(bound.body, ready, NumpySpace())
    return results[0] if len(results) == 1 else results


def bind_shapes(func: Func, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Values of size symbols from argument shapes; checks every shape.

    Raises TypeError or ValueError naming the argument.
    """
    if len(shapes) != len(func.params):
        names = ", ".join(str(p.attrs["name"]) for p in func.params)
        raise TypeError(f"@{func.name} takes {len(func.params)} arguments ({names}), got {len(shapes)}")
    values: dict[str, int] = {}
    for p, shape in zip(func.params, shapes, strict=True):
        if len(shape) != p.tensor.rank:
            raise ValueError(f"argument %{p.attrs['name']} is {p.type}, got shape {list(shape)}")
        for dim, size in zip(p.shape, shape, strict=True):
            name = _lone_symbol(dim)
            if name is not None:
                values.setdefault(name, int(size))
    for p, shape in zip(func.params, shapes, strict=True):
        for dim, size in zip(p.shape, shape, strict=True):
            expected = _value(dim, values)
            if equal(expected, int(size)) is not True:
                raise ValueError(f"argument %{p.attrs['name']} is {p.type}, got shape {list(shape)}")
    return values


def _lone_symbol(dim: Dim) -> str | None:
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def _value(dim: Dim, values: Mapping[str, int]) -> Dim:
    from stack.ir.dim import substitute

    return substitute(dim, values)


def evaluate(
    block: Block,
    args: Sequence[Array],
    space: ArraySpace,
    observe: Observe | None = None,
    outer: dict[Node, Array] | None = None,
) -> tuple[Array, ...]:
    """Values of a block's results.

    Args:
        args: one value for each parameter.
        space: what ops mean.
        observe: called with every node and its value.
        outer: values of the enclosing block, for open blocks.
    """
    # an open block shares the table: its nodes depend on its variables, so nothing is shadowed
    env: dict[Node, Array] = outer if outer is not None else {}
    env.update(zip(block.params, args, strict=True))
    with np.errstate(all="ignore"):
        for node in block.nodes:
            env[node] = _evaluate_node(node, env, space, observe)
            if observe is not None:
                observe(node, env[node])
    return tuple(env[r] for r in block.results)


def _evaluate_node(
    node: Node, env: dict[Node, Array], space: ArraySpace, observe: Observe | None
) -> Array:
    args = [env[a] for a in node.args]
    op = ops.lookup(node.op)

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
    if node.op in ("cond", "while"):
        results = getattr(space, f"op_{node.op}")(node, run, *args)
        return results if isinstance(node.type, TupleType) else results[0]
    if op.kind == "elementwise":
        return _settle(node, space.elementwise(node, *args), space)
    if method is None:
        raise StackError(f"the interpreter has no meaning for op {node.op!r}: {print_node(node)}")
    return _settle(node, method(node, *args), space)


def _settle(node: Node, value: Array, space: ArraySpace) -> Array:
    if isinstance(node.type, TensorType):
        return space.settle(value, node.type)
    return tuple(space.settle(v, t) for v, t in zip(value, node.type.items, strict=True))
