"""Forward-mode derivatives: torch hangs a tangent on a tensor, where no compiled graph sees it."""

from __future__ import annotations

import warnings

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._guards import TracingContext


def in_dual_level() -> bool:
    """Whether tensors may have tangents now."""
    return torch.autograd.forward_ad._current_level >= 0


def takes_tangents() -> bool:
    """Whether a graph is to run in torch, op by op, as tensors may have tangents.

    Dynamo, which is compiling a graph, captures it again where that changes.
    """
    context = TracingContext.try_get()
    if context is not None:
        guard = GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL)
        context.guards_context.dynamo_guards.add(guard)
    found = in_dual_level()
    if found:
        warnings.warn(
            "forward-mode derivatives: a graph runs op by op in torch within `dual_level`;"
            " `torch.func.jvp` inside of the program is compiled",
            stacklevel=2,
        )
    return found
