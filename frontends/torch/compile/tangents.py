"""Forward-mode derivatives: torch attaches tangents to tensors, invisible to compiled graphs."""

from __future__ import annotations

import warnings

from stack.frameworks.torch_private import guard_dual_level, in_dual_level


def takes_tangents() -> bool:
    """True if tensors may have tangents, so that torch has to run a graph op by op.

    Also adds a guard, so that Dynamo captures the graph again when this changes.
    """
    guard_dual_level()
    found = in_dual_level()
    if found:
        warnings.warn(
            "forward-mode derivatives: a graph runs op by op in torch within `dual_level`;"
            " `torch.func.jvp` inside of the program is compiled",
            stacklevel=2,
        )
    return found
