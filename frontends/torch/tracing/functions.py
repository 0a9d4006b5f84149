"""Torch functions written as simpler ones: tables of modules that wings and packages register.

A module of entry point group `stack.torch_functions` may have two tables. `WRITTEN` has functions,
or names of tensor methods, that are replaced before autograd sees them. `DECOMPOSITIONS` has ATen
ops, which are replaced while they are traced. A function without an entry is traced as torch
decomposes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import Any

from torch.fx import GraphModule

import stack.plugins as plugins

GROUP = "stack.torch_functions"
Table = dict[Any, Callable[..., Any]]
_TRACED: ContextVar[bool] = ContextVar("traced", default=False)


@cache
def _modules() -> tuple[ModuleType, ...]:
    found: list[ModuleType] = []
    for name in plugins.names(GROUP):
        with suppress(Exception):  # `stackc env` names a broken wing
            found.append(plugins.load(GROUP, name))
    return tuple(found)


@cache
def written() -> Table:
    """Returns the replacements by function, or by name of a tensor method."""
    return {f: made for m in _modules() for f, made in getattr(m, "WRITTEN", {}).items()}


@cache
def decomposed() -> Table:
    """Returns the decompositions by ATen op."""
    return {op: made for m in _modules() for op, made in getattr(m, "DECOMPOSITIONS", {}).items()}


@contextmanager
def functions_traced() -> Iterator[None]:
    """Context in which Dynamo infers shapes from the written functions, too."""
    _ = written()  # the modules may register implementations in torch
    token = _TRACED.set(True)
    try:
        yield
    finally:
        _TRACED.reset(token)


def is_traced() -> bool:
    """True while Dynamo traces for one of our captures."""
    return _TRACED.get()


def write_out(graph: GraphModule) -> None:
    """Replace written functions in a graph that Dynamo captured, and in nested graphs."""
    table = written()
    for module in graph.modules():
        if not isinstance(module, GraphModule):
            continue
        calls = [
            n
            for n in module.graph.nodes
            if n.op in ("call_function", "call_method") and n.target in table
        ]
        for node in calls:
            node.op, node.target = "call_function", table[node.target]
        if calls:
            module.recompile()
