"""Inference mode in or around a Dynamo graph, compiled as a graph without gradients.

Torch's wrappers that make writes functional do not accept views of inference tensors. A program
computes the same values in inference mode and without gradients. If the whole graph is in inference
mode, as under a decorator, its results are inference tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Node

from stack.frameworks.torch_private import ENTER_INFERENCE, EXIT_INFERENCE, SET_GRAD

Compile = Callable[[GraphModule], Callable[..., Any]]

_is_inference = torch.is_inference_mode_enabled


def compiled_by_mode(gm: GraphModule, compile: Compile) -> Callable[..., Any]:
    """Compiles a Dynamo graph for its own mode and for that of its caller.

    Dynamo does not guard inference mode. A graph that enables gradients itself has none in
    inference mode, so it is compiled a second time, without gradients, for calls in that mode.
    """
    modes = without_inference_mode(gm)
    inner = modes.pop() if len(modes) == 1 else None
    off = copy.deepcopy(gm) if _enables(gm) and not inner else None
    call = compile(gm)
    if off is None and inner is None:
        return call
    without: list[Callable[..., Any]] = []

    def called(*args: Any) -> Any:
        with nullcontext() if inner is None else torch.inference_mode(inner):
            if off is None or not _is_inference():
                return call(*args)
            if not without:
                with torch.inference_mode(False), torch.no_grad():
                    _disable(off)
                    without.append(compile(off))
            return without[0](*args)

    return torch.compiler.disable(called, reason="it is a compiled graph")


def without_inference_mode(gm: GraphModule) -> set[bool | None]:
    """Replace entering inference mode in a graph by disabling gradients.

    Returns the modes in which the graph computes: True for inference mode, None for the caller's.
    """
    mode: bool | None = None
    modes: set[bool | None] = set()
    grad = torch.is_grad_enabled()
    before: dict[Node, tuple[bool, bool | None]] = {}
    for node in [*gm.graph.nodes]:
        if node.target is ENTER_INFERENCE:
            before[node] = grad, mode
            mode = bool(node.args[0])
            grad = _set(gm, node, not mode)
        elif node.target is EXIT_INFERENCE:
            grad, mode = before[node.args[0]]  # pyright: ignore[reportArgumentType]
            _set(gm, node, grad)
            gm.graph.erase_node(node)
        elif node.target is SET_GRAD:
            grad = bool(node.args[0]) and not mode
            node.args = (grad,)
        elif node.op not in ("placeholder", "output"):
            modes.add(mode)
    for node in reversed(before):
        gm.graph.erase_node(node)
    if before:
        gm.recompile()
    return modes


def _set(gm: GraphModule, node: Node, grad: bool) -> bool:
    with gm.graph.inserting_before(node):
        gm.graph.call_function(SET_GRAD, (grad,))
    return grad


def _enables(gm: GraphModule) -> bool:
    return any(n.args[0] for n in gm.graph.find_nodes(op="call_function", target=SET_GRAD))


def _disable(gm: GraphModule) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=SET_GRAD):
        node.args = (False,)
    gm.recompile()
