"""Guards for an argument that the program also reads as a global or a module's weight.

If a program reads one object from two sources, Dynamo makes one input of it. It guards that both
sources are the same object only if both are arguments or neither is. Without a guard, a later call
with another argument would run the first graph, which ignores the argument.

Sources read only inside a function that torch traces separately (the body of
`torch.utils.checkpoint`) are not recorded, so they are not guarded.
"""

from __future__ import annotations

from typing import Any

from stack.frameworks.torch_private import guard_same, is_of_argument, traced_frame


def guard_identity() -> None:
    """Add identity guards to the graph being compiled, for arguments also read from elsewhere."""
    output = traced_frame()
    if output is None:  # the backend was called without Dynamo
        return
    frame = output.root_tx
    if frame is None:
        return
    scope = {"G": frame.f_globals, "L": frame.f_locals}
    known: dict[Any, Any] = {}
    # torch 2.11 does not record the sources it reads
    for source in getattr(output.root_tracer, "traced_sources", ()):
        try:
            value = source.get_value(scope, {}, known)
        except Exception:
            continue  # the value exists only while the program runs
        if value not in output.side_effects:
            continue
        first = output.side_effects[value].source
        if first and is_of_argument(first) != is_of_argument(source):
            guard_same(source, first)
