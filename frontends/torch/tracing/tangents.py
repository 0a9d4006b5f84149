"""Forward-mode derivatives: torch attaches tangents to tensors, invisible to compiled graphs."""

from __future__ import annotations

import warnings

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._guards import TracingContext


def in_dual_level() -> bool:
    """True if tensors may have tangents now."""
    return torch.autograd.forward_ad._current_level >= 0


def takes_tangents() -> bool:
    """True if tensors may have tangents, so that torch has to run a graph op by op.

    Also adds a guard, so that Dynamo captures the graph again when this changes.
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
