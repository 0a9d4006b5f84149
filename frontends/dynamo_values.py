"""Values of Dynamo's nodes that are like those of nodes before: what they look like is known.

Dynamo calls torch's functions with tensors without memory to learn what they give: a quarter of the
time of a capture. The layers of a model ask the same again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stack.frontends.fx_looks import Learner, Maker, Operands, leaves, mapped, operands_of


class Values:
    """In the place of a function of Dynamo that runs a node, for one capture."""

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
    """Those of a node of torch's own functions, which no mode changes; None for others."""
    has_mode = torch.is_inference_mode_enabled() or torch._C._is_any_autocast_enabled()
    if torch.is_grad_enabled() or has_mode or node.op not in ("call_function", "call_method"):
        return None
    home = getattr(node.target, "__module__", None) or "torch"
    if node.op == "call_function" and not home.startswith(("torch", "_operator", "math")):
        return None
    found = operands_of((node.op, node.target, args, kwargs))
    return found if found is not None and found.tensors else None


def _is_new(found: Any, operands: Operands) -> bool:
    """Whether results are tensors of known sizes, none of them an operand itself."""
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
