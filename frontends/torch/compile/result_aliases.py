"""AOTAutograd's treatment of the results of a compiled graph.

It writes new values into inputs. It remakes results that share an input's memory as views of that
input, and only uses the layout of what the graph returns for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Node

from stack.frameworks.torch_private import aot_settings, is_transformed, memory_id, tracing_context
from stack.frontends.torch.importer.border import Aliases


def traced_aliases() -> Aliases:
    """Returns the aliases of the forward graph that is being compiled."""
    context = tracing_context()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or metadata.tokens:
        return Aliases()
    written = metadata.mutated_inp_runtime_indices
    views = {
        number: info.base_idx
        for number, info in enumerate(metadata.output_info, len(written))
        if info.output_type.name == "alias_of_input" and info.base_idx is not None
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
    return aot_settings(view_replay_for_aliased_outputs=False)


def _changes_width(node: Node) -> bool:
    """True if a node views its operand's memory with another element width."""
    made = _placed(node)
    if made is None:
        return False
    operands = [x for n in node.all_input_nodes if (x := _placed(n)) is not None]
    return any(
        x.element_size() != made.element_size() and memory_id(x) == memory_id(made)
        for x in operands
    )


def _placed(node: Node) -> torch.Tensor | None:
    """Returns the tensor that Dynamo traced for a node, if it is an ordinary strided one."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return None if is_transformed(value) else value
