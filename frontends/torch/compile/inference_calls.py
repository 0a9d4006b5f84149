"""Calls in inference mode of a Dynamo graph, which is compiled as a graph without gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import GraphModule

from stack.frontends.torch.graphs.inference_mode import gradient_switches, without_inference_mode

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


def _enables(gm: GraphModule) -> bool:
    return any(n.args[0] for n in gradient_switches(gm.graph))


def _disable(gm: GraphModule) -> None:
    for node in gradient_switches(gm.graph):
        node.args = (False,)
    gm.recompile()
