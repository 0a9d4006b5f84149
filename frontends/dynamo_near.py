"""Calls of a compiled graph by address, with the arguments and for the results that torch sees.

What lies between a graph and its program looks at arguments in another way, and gives results
other strides. Where arguments are like those of the call before, their addresses are all that the
program needs, and results are made as they are to lie; views by where they lie in their base, as
AOTAutograd makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards
from torch._functorch._aot_autograd.schemas import OutputAliasInfo, OutputType
from torch._guards import TracingContext
from torch.fx import GraphModule

from stack.frontends.fx_border import Order, Part, Place, inverse
from stack.frontends.torch_arrays import TORCH_DTYPE, is_dense
from stack.frontends.torch_direct import Layout, caller, row_major
from stack.ir.node import Node
from stack.run.backend import ByAddress, Direct
from stack.run.frontend import Arrays, Finds

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OF_INPUTS = (OutputType.alias_of_input, OutputType.is_input)
_OF_OTHERS = (
    OutputType.non_alias,
    OutputType.unsafe_view_alias,
    OutputType.alias_of_intermediate,
    OutputType.alias_of_intermediate_save_as_output,
    OutputType.alias_of_intermediate_base_is_user_output,
)


@dataclass(frozen=True)
class Shortcut:
    """What is the same in all near calls of a graph.

    Attributes:
        inputs: how many arguments there are.
        places: for each parameter which argument it is; its first element is that of the argument.
        fresh: for each fresh value of the graph its number among the program's results, and the
            order of axes in which the program computes it.
        results: where each result of the graph is.
    """

    inputs: int
    places: tuple[int, ...]
    fresh: tuple[tuple[int, Order], ...]
    results: tuple[Place, ...]

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
        if not all(map(is_dense, arrays)) or not self._has_plain_views(args):
            return None
        orders = dict(self.fresh)
        layouts = [
            _layout(shape, orders[number], TORCH_DTYPE[node.dtype])
            for number, (shape, node) in enumerate(zip(program.shapes, returned, strict=True))
        ]
        numbers = [n for n, _ in self.fresh]
        results = [self._alone(place, layouts, numbers) for place in self.results]
        run = caller(program, args, self.places, layouts, numbers, kept)
        own = [Place(self.inputs + i, None) for i in range(len(numbers))]
        return run if results == own else _with_views(run, results, self.inputs)

    def of_views(self, args: Sequence[Any]) -> Direct | None:
        """The same of a graph that gives arguments and views of them alone."""
        if not self._has_plain_views(args):
            return None
        guards: Any = TensorGuards(*args, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        is_alike, nothing = guards.check, []

        def run(args: Arrays) -> list[torch.Tensor] | None:
            return nothing if is_alike(*args) else None

        return _with_views(run, self.results, self.inputs)

    def _has_plain_views(self, args: Sequence[Any]) -> bool:
        """Whether views of these arguments have no gradients, and nobody follows how they are made.

        Dynamo's guards tell other modes from those of now.
        """
        views = [place for place in self.results if place.part is not None]
        has_gradients = any(v.base < self.inputs and args[v.base].requires_grad for v in views)
        return not views or not (has_gradients or torch._C._len_torch_function_stack())

    def _alone(self, place: Place, layouts: list[Layout], numbers: Sequence[int]) -> Place:
        """A place, or that of a base of which nobody sees more: that is to lie as the view does."""
        is_shared = sum(other.base == place.base for other in self.results) > 1
        if place.part is None or place.base < self.inputs or is_shared:
            return place
        number, (sizes, strides, _) = numbers[place.base - self.inputs], place.part
        shape, _, dtype = layouts[number]
        if not _is_whole(place.part, math.prod(shape)):
            return place
        layouts[number] = sizes, strides, dtype
        return Place(place.base, None)


def _is_whole(part: Part, count: int) -> bool:
    """Whether a view has all of so many elements that lie beside each other, each once."""
    sizes, strides, offset = part
    axes = sorted((t, n) for n, t in zip(sizes, strides, strict=True) if n != 1)
    is_dense = all(axes[i][0] == math.prod(n for _, n in axes[:i]) for i in range(len(axes)))
    return is_dense and offset == 0 and math.prod(sizes) == count


def _with_views(run: Direct, places: Sequence[Place], inputs: int) -> Direct:
    """What gives the results of a graph, by what gives its fresh values."""
    results = [(p.base, p.base - inputs, p.part) for p in places]

    def with_views(args: Arrays) -> list[torch.Tensor] | None:
        fresh = run(args)
        if fresh is None:
            return None
        found: list[torch.Tensor] = []
        for place, number, part in results:
            base = args[place] if number < 0 else fresh[number]
            if part is not None:
                sizes, strides, offset = part
                base = torch.as_strided(base, sizes, strides, base.storage_offset() + offset)
            found.append(base)
        return found

    return with_views


def _layout(shape: Sequence[int], order: Order, dtype: torch.dtype) -> Layout:
    """Sizes and strides of what a program computes with its axes in an order."""
    strides, back = row_major(shape), inverse(order)
    return tuple(shape[i] for i in back), tuple(strides[i] for i in back), dtype


def has_parts(gm: GraphModule) -> bool:
    """Whether a graph has modules, parameters or buffers of its own, whatever these hold."""
    parts = chain(gm.children(), gm.parameters(), gm.buffers())
    return any(True for _ in parts)  # a tensor, or a module, may be false itself


def passed_on(gm: GraphModule, examples: Sequence[Any], shortcut: Shortcut | None) -> int | None:
    """How many results AOTAutograd returns, where it passes its arguments on and these results.

    None where it does anything else, other than to make the views that results are once more.

    Args:
        gm: what AOTAutograd has just compiled, for inference, for such arguments.
        shortcut: how its graph is called.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or shortcut is None or len(examples) != shortcut.inputs or has_parts(gm):
        return None
    if any(type(x) not in _PLAIN for x in examples):
        return None
    changed = (i.mutates_data or i.mutates_metadata for i in metadata.input_info)
    more = (
        metadata.tokens,
        metadata.num_graphsafe_rng_states,
        metadata.is_rng_op_functionalized,
        metadata.grad_enabled_mutation is not None,
    )
    told = metadata.output_info
    is_same = all(
        _is_same(o, p, shortcut.inputs) for o, p in zip(told, shortcut.results, strict=False)
    )
    return len(told) if is_same and not any(changed) and not any(more) else None


def _is_same(told: OutputAliasInfo, place: Place, inputs: int) -> bool:
    """Whether AOTAutograd takes a result for one that is at a place."""
    if told.output_type in _OF_INPUTS:
        is_itself = told.output_type is OutputType.is_input
        return place.base == told.base_idx and (place.part is None) == is_itself
    return told.output_type in _OF_OTHERS and place.base >= inputs
