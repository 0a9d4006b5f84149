"""Captures a program of losses and gradients, for passes that build a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.errors import UsageError
from stack.ir.builder import constant
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.run.compile import DEFAULT_BACKEND
from stack.run.frontend import RECORD
from stack.run.trace import find_frontend


def gradients_of(fn: Any, args: Sequence[Any], frontend: str = "auto") -> Func:
    """The results of `fn`, a scalar first, and their gradients, as one function.

    torch: gradients of all parameters of the module that require one. JAX: of all float arguments.
    Raises UsageError if the program is split into several graphs.
    """
    options = {"backend": RECORD, "cut_for": DEFAULT_BACKEND, "passes": "default", "strict": False}
    found = find_frontend(fn, args, frontend).train_runs(fn, args, options)
    joints = [run["joint"].func for run in found if "joint" in run.stages]
    joints = joints or [run["imported"].func for run in found if "imported" in run.stages]
    if len(joints) != 1 or joints[0] is None:
        raise UsageError(f"{len(joints)} graphs; training needs exactly one")
    return _seeded(joints[0])


def _seeded(func: Func) -> Func:
    """Returns a function with its last parameter, the gradient of the scalar result, replaced by 1.
    Unchanged if the last parameter is no gradient.
    """
    last = func.params[-1]
    if not str(last.attrs["name"]).startswith("tangents"):
        return func
    one = constant(np.ones((), last.dtype.numpy), last.dtype)
    done: dict[Node, Node] = {p: p for p in func.params} | {last: one}
    for node in func.nodes:
        args = [done[a] for a in node.args]
        done[node] = Node(node.op, args, node.attrs, node.type, node.blocks)
    block = func.body
    body = Block(
        func.params[:-1],
        [done[r] for r in func.results],
        {done[n]: name for n, name in block.names.items() if n is not last},
        {done[n]: lines for n, lines in block.locs.items() if n is not last},
    )
    return Func(func.name, body, func.level)
