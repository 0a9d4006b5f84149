"""Fast path: calls a compiled graph by the addresses of its arguments.

The code between a graph and its program inspects arguments and changes the strides of results. If
arguments have the layouts of the previous call, the program only needs their addresses, and results
are allocated in their final layout. Results that are views are made from sizes, strides and offset
in their base, as AOTAutograd makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.fx import GraphModule

from stack.frameworks.torch_private import has_function_mode, layout_check, tracing_context
from stack.frontends.torch.aten.lowering import Promise
from stack.frontends.torch.capture.calls import kept_promises
from stack.frontends.torch.importer.border import Order, Part, Place, inverse
from stack.frontends.torch.program.address_calls import Layout, caller, dense_caller, row_major
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE, is_dense
from stack.frontends.torch.tensors.random_ops import with_strides
from stack.ir.node import Node
from stack.run.backend import AddressProgram, CallDense, Direct
from stack.run.frontend import Arrays, Finds

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# AOTAutograd's kinds of results, by name; a kind of another release has no fast path
_OF_INPUTS = ("alias_of_input", "is_input")
_OF_OTHERS = (
    "non_alias",
    "unsafe_view_alias",
    "alias_of_intermediate",
    "alias_of_intermediate_save_as_output",
    "alias_of_intermediate_base_is_user_output",
)


@dataclass(frozen=True)
class Shortcut:
    """Constants of all fast calls of a graph.

    Attributes:
        inputs: number of arguments.
        places: for each parameter the number of its argument; both start at the same element.
        fresh: for each fresh value its number among the program's results, and the order of axes
            in which the program computes it. The last ones are the `promises`.
        results: for each result its base, and its view of the base.
        apart: strides of the fresh values between whose elements memory is unused: the program
            computes them dense, and torch copies them.
        promises: conditions that are checked after a run.
    """

    inputs: int
    places: tuple[int, ...]
    fresh: tuple[tuple[int, Order], ...]
    results: tuple[Place, ...]
    apart: Mapping[int, tuple[int, ...]]
    promises: tuple[Promise, ...]

    def near(
        self, program: AddressProgram, args: Sequence[Any], arrays: Sequence[Any],
        returned: Sequence[Node], kept: Finds | None,
    ) -> Direct | None:  # fmt: skip
        """Returns a callable for arguments with the same layouts, as checked by Dynamo's own guard.

        The callable returns None for other arguments, if frozen values of the current weights are
        missing, and if memory is short. Returns None if the program needs arrays, not addresses.

        Args:
            arrays: the arguments as the program sees them.
            returned: the results of the program.
            kept: finds memory whose addresses are passed before those of the arrays.
        """
        if not self._are_plain(args, arrays, program.device):
            return None
        layouts, numbers, results = self._laid_out(returned)
        run = caller(program, args, self.places, layouts, numbers, kept)
        return self._with_results(run, results)

    def dense(
        self, call: CallDense, args: Sequence[Any], arrays: Sequence[Any], device: str,
        returned: Sequence[Node], array: Callable[[Sequence[Any], int], torch.Tensor],
    ) -> Direct | None:  # fmt: skip
        """Like `near`, for a program that takes arrays.

        Args:
            call: runs the program on dense arrays.
            arrays, returned: as for `near`.
            device: the device of the program.
            array: returns the array of a parameter from the arguments.
        """
        if not self._are_plain(args, arrays, device):
            return None
        layouts, numbers, results = self._laid_out(returned)
        computed = [_layout(n, tuple(range(len(n.shape)))) for n in returned]
        views = [(i, None if layouts[i] == computed[i] else layouts[i]) for i in numbers]
        run = dense_caller(call, args, self.places, array, views)
        return self._with_results(run, results)

    def _are_plain(self, args: Sequence[Any], arrays: Sequence[Any], device: str) -> bool:
        """True if the program can read the arrays, and torch needs no other views than ours."""
        return all(is_dense(a, device) for a in arrays) and self._has_plain_views(args)

    def _laid_out(self, returned: Sequence[Node]) -> tuple[list[Layout], list[int], list[Place]]:
        """Returns layouts of the program's results, their numbers in the order of fresh values, and
        the results of the graph.
        """
        orders, numbers = dict(self.fresh), [n for n, _ in self.fresh]
        layouts = [_layout(node, orders[number]) for number, node in enumerate(returned)]
        return layouts, numbers, [self._alone(p, layouts, numbers) for p in self.results]

    def _with_results(self, run: Direct, results: Sequence[Place]) -> Direct:
        """Returns a callable for `results` of the graph, from one that returns its fresh values."""
        own = [Place(self.inputs + i, None) for i in range(len(self.fresh) - len(self.promises))]
        run = self._finished(run) if self.apart or self.promises else run
        return run if [*results] == own else _with_views(run, results, self.inputs)

    def _finished(self, run: Direct) -> Direct:
        """Returns a callable that checks the promises and lays out values apart, after `run`."""
        apart, promises = self.apart, self.promises

        def finished(args: Arrays) -> list[torch.Tensor] | None:
            found = run(args)
            if found is None:
                return None
            kept = [*kept_promises(found, promises)]
            for number, strides in apart.items():
                kept[number] = with_strides(kept[number], strides)
            return kept

        return finished

    def of_views(self, args: Sequence[Any]) -> Direct | None:
        """Like `near`, for a graph whose results are only arguments and views of arguments.

        Returns None if the views may need gradients or a torch function mode observes them.
        """
        if not self._has_plain_views(args):
            return None
        is_alike, nothing = layout_check(args), []

        def run(args: Arrays) -> list[torch.Tensor] | None:
            return nothing if is_alike(*args) else None

        return _with_views(run, self.results, self.inputs)

    def _has_plain_views(self, args: Sequence[Any]) -> bool:
        """True if these views need no gradients and no torch function mode observes them.

        Dynamo's guards check the other modes.
        """
        views = [place for place in self.results if place.part is not None]
        has_gradients = any(v.base < self.inputs and args[v.base].requires_grad for v in views)
        return not views or not (has_gradients or has_function_mode())

    def _alone(self, place: Place, layouts: list[Layout], numbers: Sequence[int]) -> Place:
        """Replaces a view of a whole fresh value by the value, if no other result shares it.

        The value then gets the sizes and strides of the view, in `layouts`. Else returns `place`.
        """
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
    """True if a view is dense and has all `count` elements, each once."""
    sizes, strides, offset = part
    axes = sorted((t, n) for n, t in zip(sizes, strides, strict=True) if n != 1)
    is_dense = all(axes[i][0] == math.prod(n for _, n in axes[:i]) for i in range(len(axes)))
    return is_dense and offset == 0 and math.prod(sizes) == count


def _with_views(run: Direct, places: Sequence[Place], inputs: int) -> Direct:
    """Returns a callable for all results of a graph, from one that returns its fresh values."""
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


def _layout(node: Node, order: Order) -> Layout:
    """Returns sizes, strides and dtype of a result computed with its axes in `order`."""
    shape = [int(size) for size in node.shape]  # pyright: ignore[reportArgumentType]
    strides, back = row_major(shape), inverse(order)
    return tuple(shape[i] for i in back), tuple(strides[i] for i in back), TORCH_DTYPE[node.dtype]


def has_parts(gm: GraphModule) -> bool:
    """True if a graph has submodules, parameters or buffers."""
    parts = chain(gm.children(), gm.parameters(), gm.buffers())
    return any(True for _ in parts)  # tensors and modules may be falsy


def passed_on(gm: GraphModule, examples: Sequence[Any], shortcut: Shortcut | None) -> int | None:
    """Returns the number of results of AOTAutograd's callable if it adds nothing around the graph.

    Adding nothing means: it passes its arguments on and returns the graph's first results, except
    that it may remake views. Otherwise None.

    Args:
        gm: the graph that AOTAutograd has just compiled, for inference, for these arguments.
        shortcut: the fast path of the graph.
    """
    context = tracing_context()
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


def _is_same(told: Any, place: Place, inputs: int) -> bool:
    """True if AOTAutograd's alias information about a result, `told`, agrees with its `Place`."""
    kind = told.output_type.name
    if kind in _OF_INPUTS:
        is_itself = kind == "is_input"
        return place.base == told.base_idx and (place.part is None) == is_itself
    return kind in _OF_OTHERS and place.base >= inputs
