"""Calls of a compiled graph by address, with the arguments and for the results that torch sees.

What lies between a graph and its program looks at arguments in another way, and gives results
other strides. Where arguments are like those of the call before, their addresses are all that the
program needs, and results are made as they are to lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch.fx import GraphModule

from stack.frontends.fx_border import Order, inverse
from stack.frontends.torch_arrays import TORCH_DTYPE, is_dense
from stack.frontends.torch_direct import Layout, caller, row_major
from stack.ir.node import Node
from stack.run.backend import ByAddress, Direct
from stack.run.frontend import Finds

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OWN = (OutputType.non_alias, OutputType.unsafe_view_alias)


@dataclass(frozen=True)
class Shortcut:
    """What is the same in all near calls of a graph.

    Attributes:
        places: for each parameter which argument it is; its first element is that of the argument.
        results: for each result of the graph its number among those of the program, and the order
            of axes in which the program computes it.
    """

    places: tuple[int, ...]
    results: tuple[tuple[int, Order], ...]

    def near(
        self, program: ByAddress, args: Sequence[Any], arrays: Sequence[Any],
        returned: Sequence[Node], kept: Finds | None,
    ) -> Direct | None:  # fmt: skip
        """What calls the program with arguments that Dynamo's own guard cannot tell from these.

        It gives None for others, where nothing is kept of their weights as they are now, and where
        memory is short. None where the program needs arrays.

        Args:
            arrays: what the arguments are for the program.
            returned: the results of the program.
            kept: what finds memory whose addresses go before those of the arrays.
        """
        if not all(map(is_dense, arrays)):
            return None
        orders = dict(self.results)
        layouts = [
            _layout(shape, orders[number], TORCH_DTYPE[node.dtype])
            for number, (shape, node) in enumerate(zip(program.shapes, returned, strict=True))
        ]
        numbers = [n for n, _ in self.results]
        return caller(program, args, self.places, layouts, numbers, kept)


def _layout(shape: Sequence[int], order: Order, dtype: torch.dtype) -> Layout:
    """Sizes and strides of what a program computes with its axes in an order."""
    strides, back = row_major(shape), inverse(order)
    return tuple(shape[i] for i in back), tuple(strides[i] for i in back), dtype


def has_parts(gm: GraphModule) -> bool:
    """Whether a graph has modules, parameters or buffers of its own, whatever these hold."""
    parts = chain(gm.children(), gm.parameters(), gm.buffers())
    return any(True for _ in parts)  # a tensor, or a module, may be false itself


def passes_on(gm: GraphModule, examples: Sequence[Any], count: int) -> bool:
    """Whether AOTAutograd gives its graph what it is given, and returns what that returns.

    Args:
        gm: what AOTAutograd has just compiled, for inference, for such arguments.
        count: how many its graph takes.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    is_own = metadata is None or len(examples) != count or has_parts(gm)
    if metadata is None or is_own or any(type(x) not in _PLAIN for x in examples):
        return False
    changed = (i.mutates_data or i.mutates_metadata for i in metadata.input_info)
    more = (
        metadata.num_intermediate_bases,
        metadata.tokens,
        metadata.num_graphsafe_rng_states,
        metadata.is_rng_op_functionalized,
        metadata.grad_enabled_mutation is not None,
    )
    is_same = all(o.output_type in _OWN for o in metadata.output_info)
    return is_same and not any(changed) and not any(more)
