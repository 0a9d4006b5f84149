"""AOTAutograd's treatment of the results of a compiled graph.

It writes new values into inputs. It remakes results that share an input's memory as views of that
input, and only uses the layout of what the graph returns for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch import config
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch.fx import GraphModule, Node


@dataclass(frozen=True)
class Aliases:
    """Results of a graph that are written to inputs or share their memory.

    Attributes:
        written: the inputs that the first results are the new values of.
        views: maps a result that is remade as a view to the input that it views.
    """

    written: Sequence[int] = ()
    views: Mapping[int, int] = field(default_factory=dict)


def traced_aliases() -> Aliases:
    """Returns the aliases of the forward graph that is being compiled."""
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


def remade_by_place(gm: GraphModule, examples: Sequence[Any]) -> AbstractContextManager[Any]:
    """Context in which AOTAutograd remakes views from sizes, strides and offset.

    By default it replays the recorded view ops, which fails if sizes differ. The default is kept
    for results with gradients, which come from the recorded views, and for views that change the
    element width, since offsets count elements.
    """
    has_gradients = any(getattr(x, "requires_grad", False) for x in examples)
    if (torch.is_grad_enabled() and has_gradients) or any(map(_changes_width, gm.graph.nodes)):
        return nullcontext()
    return config.patch(view_replay_for_aliased_outputs=False)  # pyright: ignore


def _changes_width(node: Node) -> bool:
    """True if a node views its operand's memory with another element width."""
    made = _placed(node)
    if made is None:
        return False
    operands = [x for n in node.all_input_nodes if (x := _placed(n)) is not None]
    return any(
        x.element_size() != made.element_size()
        and x.untyped_storage()._cdata == made.untyped_storage()._cdata
        for x in operands
    )


def _placed(node: Node) -> torch.Tensor | None:
    """Returns the tensor that Dynamo traced for a node, if it is an ordinary strided one."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return None if is_functorch_wrapped_tensor(value) else value
