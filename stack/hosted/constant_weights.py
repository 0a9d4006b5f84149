"""Captured weights as constants, for passes that use their values.

A model's weights are parameters of its function. Passes with `takes_weights` see them as constants.
Afterwards the constants become parameters again, so that the program is compiled for arrays and not
for fixed numbers. Later changes of the weights are not seen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy

from stack.ir.builder import Builder, constant, param
from stack.ir.data import INLINE_ELEMENTS, decode, encode
from stack.ir.func import Func
from stack.ir.node import Node, unique_name
from stack.rewrite.engine import copied
from stack.rewrite.pipeline import Pipeline
from stack.run.frontend import Captured, Frontend
from stack.run.pipeline_edits import WEIGHTS
from stack.run.record import Stage, decided


def with_weights(captured: Captured, frontend: Frontend, passes: str) -> tuple[Captured, Stage]:
    """A captured program after passes that see its bound arrays, and the record of these passes."""
    start = time.perf_counter()
    frozen = _frozen(captured, frontend)
    result = Pipeline(passes).run(frozen, verbose=True)
    func, held = _thawed(result.func)
    bound = [frontend.from_numpy(encode(n.attrs["value"].array, n.dtype), n.dtype) for n in held]
    if captured.device != "cpu":
        bound = frontend.to_device(bound, [n.dtype for n in held], captured.device)
    stage = Stage(
        WEIGHTS,
        func=func,
        passes=passes,
        changed=result.func is not frozen,
        ms=(time.perf_counter() - start) * 1e3,
        decisions=decided(result.records),
    )
    made = copy(captured)
    made.func, made.bound = func, bound
    made.weights = tuple(str(p.attrs["name"]) for p in func.params[: len(bound)])
    return made, stage


def _frozen(captured: Captured, frontend: Frontend) -> Func:
    """Replaces the bound parameters by constants."""
    b, params = Builder(), captured.func.params
    known: dict[Node, Node] = {p: p for p in params}
    for array, p in zip(captured.bound, params):
        known[p] = constant(decode(frontend.to_numpy(array, p.dtype), p.dtype), p.dtype)
        b.names[known[p]] = str(p.attrs["name"])
    return _copied(captured.func, params[len(captured.bound) :], known, b)


def _thawed(func: Func) -> tuple[Func, list[Node]]:
    """The inverse of `_frozen`: replaces large constants by new parameters, in front of the others.
    Returns the function, and the constants in the order of these parameters.
    """
    taken = {str(p.attrs["name"]) for p in func.params}
    counts: dict[str, int] = {}
    known: dict[Node, Node] = {}
    for node in func.nodes:
        if node.op == "const" and node.attrs["value"].size > INLINE_ELEMENTS:
            name = unique_name(func.body.names.get(node, "weight"), taken, counts)
            known[node] = param(name, node.type)
    made = _copied(func, (*known.values(), *func.params), known, Builder())
    return made, list(known)


def _copied(func: Func, params: Sequence[Node], known: Mapping[Node, Node], b: Builder) -> Func:
    return b.func(func.name, params, copied(func.body, func.results, known, b), func.level)
