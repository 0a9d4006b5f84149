"""Guards for an argument that the program also reads from elsewhere: a global, a module's weight.

Dynamo makes one input of an object that a program reads from two sources. It guards that both are
the same object only where both are arguments, or neither is. Without a guard, a later call with
another argument would run the graph of the first, which ignores it.

Sources that are read only inside of a function that torch traces on its own (the body of
`torch.utils.checkpoint`) are not noted, and not guarded.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import is_from_local_source
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import Source


def guard_identity() -> None:
    """Guard the graph that is being compiled for arguments that are read from elsewhere too."""
    try:
        output = InstructionTranslator.current_tx().output
    except AttributeError:  # the graph was given to the backend by somebody else
        return
    frame = output.root_tx
    if frame is None:
        return
    scope = {"G": frame.f_globals, "L": frame.f_locals}
    known: dict[Source, Any] = {}
    # torch 2.11 does not note what it reads
    for source in getattr(output.root_tracer, "traced_sources", ()):
        try:
            value = source.get_value(scope, {}, known)
        except Exception:
            continue  # it is made while the program runs
        if value not in output.side_effects:
            continue
        first = output.side_effects[value].source
        if first and is_from_local_source(first) != is_from_local_source(source):
            same = partial(GuardBuilder.DUPLICATE_INPUT, source_b=first)
            install_guard(source.make_guard(same))
