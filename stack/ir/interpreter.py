"""Evaluates a function node by node, in NumPy (the reference) or another array namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.data import round_bf16
from stack.ir.node import Block, Node
from stack.ir.ops import lookup
from stack.ir.printer import print_node
from stack.ir.sizes import sizes_of, substitute_sizes
from stack.ir.space import Array, ArraySpace, NumpySpace
from stack.ir.types import BF16, LONG_NAMES, TensorType, TupleType

PURE = ("elementwise", "movement", "reduction", "leaf")  # kinds of ops that need no data
MOST_ELEMENTS = 1 << 16  # of an array up to which `evaluated` computes it
Observe = Callable[[Node, Array, Sequence[Array]], None]  # a node, its value, those of its operands


def interpret(name: str, body: Block, arrays: Sequence[Any]) -> Any:
    """Evaluates the body of a function on NumPy arrays; see `Func.interpret`."""
    args = [np.asarray(a) for a in arrays]
    values = sizes_of(name, body.params, [a.shape for a in args])
    bound = substitute_sizes(body, values) if values else body
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
    results = evaluate(bound, ready, NumpySpace())
    return results[0] if len(results) == 1 else results


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


def evaluated(node: Node, kinds: str) -> np.ndarray[Any, Any] | None:
    """Returns the value of a node that depends on constants and positions alone; else None.

    Args:
        kinds: of the element types on the way. With floats ("f"), a kernel that computes the same
            may round in another way.
    """
    seen: set[Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        size = current.tensor.size if isinstance(current.type, TensorType) else None
        if not isinstance(size, int) or not size or size > MOST_ELEMENTS or current.blocks:
            return None
        if current.dtype.kind not in kinds or lookup(current.op).kind not in PURE:
            return None
        if current not in seen:
            seen.add(current)
            pending += current.args
    block = Block((), (node,))
    return None if block.symbols else np.asarray(evaluate(block, (), NumpySpace())[0])
