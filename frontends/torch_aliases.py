"""What AOTAutograd does with the results of the graph that it has compiled.

It writes new values into inputs, and makes results that share an input's memory anew from that
input: of what the graph returns for those it reads only where in memory it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch import config
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext


@dataclass(frozen=True)
class Aliases:
    """Results of a graph that have to do with the memory of its inputs.

    Attributes:
        written: the inputs that the first results are the new values of.
        views: results that are made anew as views of an input, and that input.
    """

    written: Sequence[int] = ()
    views: Mapping[int, int] = field(default_factory=dict)


def traced_aliases() -> Aliases:
    """Those of the forward graph that is being compiled."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or metadata.tokens:
        return Aliases()
    written = metadata.mutated_inp_runtime_indices
    views = {
        number: info.base_idx
        for number, info in enumerate(metadata.output_info, len(written))
        if info.output_type is OutputType.alias_of_input and info.base_idx is not None
    }
    return Aliases(written, views)


def remade_by_place(examples: Sequence[Any]) -> AbstractContextManager[Any]:
    """While it is entered, AOTAutograd makes such results by where those of the graph lie.

    By default it replays the views that it has recorded, which stops where sizes are others; but
    gradients are those of the recorded views.
    """
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in examples):
        return nullcontext()
    return config.patch(view_replay_for_aliased_outputs=False)  # pyright: ignore
