"""Arguments that overlap in memory in another way than those that a graph was traced with.

A graph that writes to its inputs is traced for one pattern of overlaps. Dynamo guards which inputs
are the same tensor, but not whether two views of one storage overlap, nor their offsets.
AOTAutograd's graph would then silently compute wrong results, so such calls run op by op, with a
warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch.fx import GraphModule, Node

from stack.frameworks.torch_private import overlap, tracing_context

# two inputs, and their storage offsets if the graph has these as numbers
Pairs = frozenset[tuple[int, int, int | None, int | None]]


def guarded(
    call: Callable[..., Any], gm: GraphModule, examples: Sequence[Any], watched: Sequence[int]
) -> Callable[..., Any]:
    """Returns `call` with a check that inputs overlap as traced; unchanged without written inputs.

    Args:
        gm: the Dynamo graph, which torch can run.
        watched: positions of inputs that are not weights. They may come from anywhere, and may be
            views of weights too.
    """
    context = tracing_context()
    metadata = context.fw_metadata if context is not None else None
    infos = metadata.input_info if metadata is not None else ()
    tensors = {i for i, x in enumerate(examples) if isinstance(x, torch.Tensor)}
    loose = tensors.intersection(watched)
    written = {i for i, info in enumerate(infos) if info.mutates_data}
    if written and len(infos) != len(examples):  # AOTAutograd traced one base for several inputs
        written = tensors
    if not loose or not written:
        return call
    if loose.isdisjoint(written):
        tensors = loose | written
    holders = gm.graph.find_nodes(op="placeholder")
    fixed = {i for i in tensors if isinstance(_traced_start(holders[i]), int)}
    # a graph is compiled for the inputs of the next call
    traced: list[Pairs] = []

    def checked(*args: Any) -> Any:
        pairs = _overlaps(args, loose, written, fixed, tensors)
        if not traced:
            traced.append(pairs)
        if pairs == traced[0]:
            return call(*args)
        warnings.warn(
            f"arguments overlap in memory in a new way, and {gm.__class__.__name__} writes to"
            " them: this call runs op by op; pass copies of them",
            stacklevel=2,
        )
        return gm(*args)

    return checked


def _traced_start(holder: Node) -> Any:
    value = holder.meta.get("example_value")
    return value.storage_offset() if isinstance(value, torch.Tensor) else None


def _overlaps(
    args: Sequence[Any], loose: set[int], written: set[int], fixed: set[int], among: Iterable[int]
) -> Pairs:
    """Returns pairs of inputs that share memory, one of them watched and one written to."""

    def start(i: int) -> int | None:
        return args[i].storage_offset() if i in fixed else None

    places: dict[int, list[int]] = {}
    for i in among:
        places.setdefault(args[i].untyped_storage().data_ptr(), []).append(i)
    found: set[tuple[int, int, int | None, int | None]] = set()
    for group in places.values():
        for i, j in combinations(group, 2):
            touched = not (loose.isdisjoint((i, j)) or written.isdisjoint((i, j)))
            if touched and overlap(args[i], args[j]):
                found.add((i, j, start(i), start(j)))
    return frozenset(found)
