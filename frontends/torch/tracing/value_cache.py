"""Cache of example values of Dynamo's nodes: equal nodes are run on fake tensors only once.

Dynamo runs torch's functions on fake tensors (without memory) to infer their results. This takes a
quarter of a capture, and repeated layers of a model ask the same again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stack.frontends.torch.tracing.call_keys import (
    Learner,
    Maker,
    Operands,
    leaves,
    mapped,
    operands_of,
)


class Values:
    """Replaces Dynamo's `run_node` during one capture."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        self.known: dict[Hashable, Any] = {}

    def __call__(self, tracer: Any, node: Any, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        operands = _operands(node, args, kwargs)
        if operands is None:
            return self.run(tracer, node, args, kwargs, nnmodule)
        if operands.key in self.known:
            return mapped(self.known[operands.key], Maker(operands).tensor)
        versions = [t._version for t in operands.tensors]
        with torch._C._DisablePythonDispatcher():
            found = self.run(tracer, node, args, kwargs, nnmodule)
        if versions == [t._version for t in operands.tensors] and _is_new(found, operands):
            self.known[operands.key] = mapped(found, Learner(operands).value)
        return found


def _operands(node: Any, args: Any, kwargs: Any) -> Operands | None:
    """Returns the operands of a call of a torch function without modes; None for others."""
    has_mode = torch.is_inference_mode_enabled() or torch._C._is_any_autocast_enabled()
    if torch.is_grad_enabled() or has_mode or node.op not in ("call_function", "call_method"):
        return None
    home = getattr(node.target, "__module__", None) or "torch"
    if node.op == "call_function" and not home.startswith(("torch", "_operator", "math")):
        return None
    found = operands_of((node.op, node.target, args, kwargs))
    return found if found is not None and found.tensors else None


def _is_new(found: Any, operands: Operands) -> bool:
    """True if results are tensors of known sizes and none of them is an operand."""
    given = set(map(id, operands.tensors))
    return all(
        isinstance(x, FakeTensor)
        and x.layout is torch.strided
        and x.constant is None
        and id(x) not in given
        and not (x.requires_grad or x.is_conj() or x.is_neg())
        and all(type(s) is int for s in x.shape)
        for x in leaves(found)
    )
