"""Inference mode within a graph of Dynamo's, as a graph without gradients.

Torch's wrappers that make writes functional cannot take views of tensors of inference mode. What a
program computes there is what it computes without gradients, and results are such tensors where
eager's are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import grad_mode
from torch.fx import GraphModule, Node

_ENTER = grad_mode._enter_inference_mode
_EXIT = grad_mode._exit_inference_mode
_SET_GRAD = torch._C._set_grad_enabled


def without_inference_mode(gm: GraphModule) -> bool:
    """Have a graph set gradients off where it enters inference mode.

    Returns whether all that it computes was within inference mode.
    """
    if not any(n.target is _ENTER for n in gm.graph.nodes):
        return False
    grad, whole = torch.is_grad_enabled(), True
    is_inference = False
    entered: dict[Node, tuple[bool, bool]] = {}  # what held before
    for node in [*gm.graph.nodes]:
        if node.op in ("placeholder", "output"):
            continue
        if node.target is _ENTER:
            entered[node] = grad, is_inference
            is_inference = bool(node.args[0])
            grad = _set(gm, node, not is_inference)
        elif node.target is _EXIT:
            before, is_inference = entered[node.args[0]]  # pyright: ignore[reportArgumentType]
            grad = _set(gm, node, before)
            gm.graph.erase_node(node)
        elif node.target is _SET_GRAD:
            if is_inference:  # a tensor of inference mode has no gradient all the same
                node.args = (False,)
            grad = bool(node.args[0])
        else:
            whole &= is_inference
    for node in reversed(entered):
        gm.graph.erase_node(node)
    gm.recompile()
    return whole


def _set(gm: GraphModule, node: Node, grad: bool) -> bool:
    with gm.graph.inserting_before(node):
        gm.graph.call_function(_SET_GRAD, (grad,))
    return grad


def in_inference_mode(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` in inference mode: what it makes are tensors of that mode."""

    def called(*args: Any) -> Any:
        with torch.inference_mode():
            return call(*args)

    return torch._dynamo.disable(called, reason="it is a compiled graph")
