"""Inference mode in a Dynamo graph, replaced by disabling gradients.

Torch's wrappers that make writes functional do not accept views of inference tensors. A program
computes the same values in inference mode and without gradients. If the whole graph is in inference
mode, as under a decorator, its results are inference tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Graph, GraphModule, Node

from stack.frameworks.torch_private import ENTER_INFERENCE, EXIT_INFERENCE, SET_GRAD


def gradient_switches(graph: Graph) -> Iterator[Node]:
    """Yields the nodes that enable or disable gradients of a program. Those inside of a derivative
    by `torch.func` are left out: it needs gradients of its own values, in inference mode too.
    """
    depth = 0
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        depth += (name == "_grad_increment_nesting") - (name == "_grad_decrement_nesting")
        if node.target is SET_GRAD and not depth:
            yield node


def without_inference_mode(gm: GraphModule) -> set[bool | None]:
    """Replace entering inference mode in a graph by disabling gradients.

    Returns the modes in which the graph computes: True for inference mode, None for the caller's.
    """
    mode: bool | None = None
    modes: set[bool | None] = set()
    grad = torch.is_grad_enabled()
    before: dict[Node, tuple[bool, bool | None]] = {}
    switches = {*gradient_switches(gm.graph)}
    for node in [*gm.graph.nodes]:
        if node.target is ENTER_INFERENCE:
            before[node] = grad, mode
            mode = bool(node.args[0])
            grad = _set(gm, node, not mode)
        elif node.target is EXIT_INFERENCE:
            grad, mode = before[node.args[0]]  # pyright: ignore[reportArgumentType]
            _set(gm, node, grad)
            gm.graph.erase_node(node)
        elif node in switches:
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
