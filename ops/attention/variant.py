"""Declares an attention operator from a user's program on its scores."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy

import stack.ops.attention.reference as reference
from stack.errors import UsageError
from stack.hosted import Kernel, Op, op
from stack.ops.attention.decomposition import attend
from stack.ops.attention.programs import NAMES, Program

QUERIES_AND_KEYS = "... (g r) s! d, ... g t! d, ... g t! e"
# of operands of programs; masks depend on positions, so that queries and keys are needed whole
_AXES = {"h": "(g r)", "s": "s!", "t": "t!"}


def variant(
    name: str,
    program: Program,
    doc: str,
    *,
    causal: bool = False,
    kernels: tuple[Kernel, ...] = (),
    values: Callable[..., None] | None = None,
) -> Op:
    """Declare attention with a program on its scores.

    The operator takes `q [..., h, s, d]`, `k [..., g, t, d]`, `v [..., g, t, e]`, the operands of
    the program, and by name `causal`, `window`, `softcap` and `scale`.

    Args:
        name: "family.operator".
        doc: the docstring of the operator.
        causal: the default of `causal`.
        values: a check that refuses values of arrays; see `Op`.

    Raises:
        UsageError: an operand has axes that scores do not have.
    """
    for operand, axes in program.operands.items():
        if [n for n in NAMES if n in axes.split()] != axes.split():
            raise UsageError(
                f"{name}: {operand!r} has axes {axes!r}; scores have {NAMES}, in order"
            )

    def decomposition(np: Any, q: Any, k: Any, v: Any, *operands: Any, **attributes: Any) -> Any:
        return attend(np, program, q, k, v, operands, attributes)[0]

    def algorithm(q: Any, k: Any, v: Any, *operands: Any, **attributes: Any) -> Any:
        return reference.attend(program, q, k, v, operands, attributes)[0]

    decomposition.__signature__ = signature(  # pyright: ignore[reportFunctionMemberAccess]
        ("np", "q", "k", "v", *program.operands), causal
    )
    decomposition.__doc__ = doc
    rule = ", ".join([QUERIES_AND_KEYS, *_sides(program)]) + " -> ... (g r) s! e"
    declare = op(
        name, rule=rule, reference=algorithm, kernels=kernels, autocast="low", values=values
    )
    return declare(decomposition)


def _sides(program: Program) -> Iterator[str]:
    """Yields the axes and element type of each operand of a program, as an axis rule has them."""
    for name, axes in program.operands.items():
        own = " ".join(_AXES.get(axis, axis) for axis in axes.split())
        yield f"{own}: {program.elements.get(name, 'any')}"


def signature(operands: tuple[str, ...], causal: bool) -> inspect.Signature:
    """The signature of a variant: arrays by position, the attributes of attention by name."""
    keywords = {"causal": causal, "window": 0, "softcap": 0.0, "scale": 0.0}
    return inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in operands]
        + [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d, annotation=type(d))
            for n, d in keywords.items()
        ]
    )


def subtree_ends(parents: Any, context: int) -> Any:
    """Returns the `ends` operand of `attention.with_tree`: the end of each key's subtree.

    Args:
        parents: [n] integers: the parent of each drafted token, which comes before it, or -1 for
            the context. Nodes are in depth-first order.
        context: number of keys before the tree, which all nodes see.

    Raises:
        UsageError: a parent after its child, or an order that is not depth-first.
    """
    count = len(parents)
    ends = numpy.arange(count) + 1
    for node in reversed(range(count)):
        parent = int(parents[node])
        if not -1 <= parent < node:
            raise UsageError(f"'parents': {parent} is not a node before {node}")
        if parent >= 0:
            if ends[parent] not in (parent + 1, ends[node]) and ends[parent] < ends[node]:
                raise UsageError(f"'parents': node {node} is not in depth-first order")
            ends[parent] = max(ends[parent], ends[node])
    whole = numpy.full(context, count)
    for node in range(count):  # every node of a subtree range descends from its root
        for inside in range(node + 1, int(ends[node])):
            if not node <= int(parents[inside]) < ends[node]:
                raise UsageError(f"'parents': node {inside} is not in depth-first order")
    return numpy.concatenate([whole, ends]).astype(numpy.int32) + numpy.int32(context)
