"""What torch functions and ATen ops are traced as: other ops, instead of themselves.

Wings and packages register modules of entry point group `stack.torch_functions`. A module may have
two tables. `WRITTEN` has functions, or names of tensor methods, that are replaced before autograd
sees them. `DECOMPOSITIONS` has ATen ops, which are replaced while they are traced. Other ops are
traced as torch decomposes them, unless they have a lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

from torch.fx import GraphModule

import stack.plugins as plugins
from stack.frameworks import torch_private as private
from stack.frontends.torch.aten.complex_numbers import MADE_OF_PARTS
from stack.frontends.torch.aten.lowering import LOWERINGS
from stack.frontends.torch.tensors import random_ops
from stack.frontends.torch.tracing import layouts

GROUP = "stack.torch_functions"
Decomposition = Callable[..., Any]
_TRACED: ContextVar[bool] = ContextVar("traced", default=False)

# These ops are lowered as one, but decomposed in a graph that is partitioned into forward and
# backward passes: the reductions inside a softmax may then be saved on their own. Torch's
# partitioner knows permute, not transpose, as a view.
_ROW_OPS = frozenset({
    "aten._softmax.default", "aten._softmax_backward_data.default",
    "aten._log_softmax.default", "aten._log_softmax_backward_data.default",
})  # fmt: skip
_VIEWS = frozenset({"aten.transpose.int"})


class Tables(NamedTuple):
    """The tables of all registered modules.

    Attributes:
        written: replacements by function, or by name of a tensor method.
        decomposed: decompositions by ATen op, with those of this room.
    """

    written: dict[Any, Decomposition]
    decomposed: dict[Any, Decomposition]


@cache
def tables() -> Tables:
    """Returns the replacements and decompositions; loads the modules that register them."""
    found = Tables({}, random_ops.DECOMPOSITIONS | layouts.DECOMPOSITIONS)
    for name in plugins.names(GROUP):
        with suppress(Exception):  # `stackc env` names a broken wing
            module = plugins.load(GROUP, name)
            found.written.update(getattr(module, "WRITTEN", {}))
            found.decomposed.update(getattr(module, "DECOMPOSITIONS", {}))
    return found


@contextmanager
def functions_traced() -> Iterator[None]:
    """Context in which Dynamo infers shapes from the written functions, too."""
    tables()  # the modules may register implementations in torch
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
    table = tables().written
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


@cache
def decomposition(op: Any) -> Decomposition | None:
    """Returns the decomposition of an ATen op; None for an op without one, or with a lowering."""
    own = tables().decomposed.get(op)
    is_kept = str(op) in LOWERINGS or str(op) in MADE_OF_PARTS
    return own if own is not None or is_kept else _torchs(op)


@cache
def decompositions(cut: bool = False, split: bool = False) -> dict[Any, Decomposition]:
    """Returns the decompositions of all ops, for AOTAutograd.

    Args:
        cut: for a graph that will be partitioned.
        split: also decompose row ops such as softmax.
    """
    kept = LOWERINGS.keys() | MADE_OF_PARTS
    kept -= (_VIEWS if cut else set()) | (_ROW_OPS if split else set())
    ops = [op for op in private.decompositions() if isinstance(op, private.OpOverload)]
    found = {op: made for op in ops if str(op) not in kept and (made := _torchs(op))}
    return found | tables().decomposed


def _torchs(op: Any) -> Decomposition | None:
    """Returns torch's decomposition of an op; None if it draws other numbers than eager."""
    made = private.decompositions().get(op)
    return made if made is not None and random_ops.draws_as_eager(op) else None
