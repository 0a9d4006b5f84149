"""Memory layouts of values, where torch traces another layout than eager uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from stack.frameworks.torch_private import decompositions, memory_id
from stack.frontends.torch.graphs.eager_runs import run_in_eager
from stack.frontends.torch.importer.border import inverse, physical_order

aten = torch.ops.aten
BY_STRIDES = frozenset({"as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"})


def lay_out_as_eager(gm: GraphModule, examples: Sequence[Any]) -> None:
    """Give the values of a Dynamo graph eager's layouts, if its calls read memory by strides.

    Only torch's kernels know these layouts, so the graph runs once in eager. If the graph writes to
    the memory of a view, `as_strided` of the view is changed to read the whole memory: tracing
    loses writes outside the view, and eager also regenerates such a view from the whole. Without
    writes the view is kept: eager's gradient of it is zero outside the view.

    Args:
        gm: the graph; new values get a copy to that axis order after each call.
        examples: the arguments.
    """
    calls = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method")]
    by_strides = [n for n in calls if getattr(n.target, "__name__", n.target) in BY_STRIDES]
    if not by_strides:
        return
    written = _written_memories(gm)
    for node in by_strides:
        _read_whole(node, written)
    made: dict[int, torch.Tensor] = {}  # by address; kept alive, so that addresses are not reused
    found: list[tuple[Node, tuple[int, ...]]] = []

    def seen(node: Node, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return
        memory = value.untyped_storage().data_ptr()
        if memory not in made and node.op != "placeholder":
            order = physical_order(value)
            if order is not None:
                found.append((node, order))
        made.setdefault(memory, value)

    run_in_eager(gm, examples, seen)
    for node, order in found:
        with gm.graph.inserting_after(node):
            copy = gm.graph.call_function(laid_out, (node, order))
        node.replace_all_uses_with(copy, lambda user, copy=copy: user is not copy)
        copy.meta = dict(node.meta)
    if found:
        gm.recompile()


def _written_memories(gm: GraphModule) -> set[int]:
    """Returns the ids of the memories that the graph writes to."""
    values = [value for node in gm.graph.nodes if (value := _strided(node)) is not None]
    return {memory_id(value) for value in values if value._version}


def _strided(node: Node) -> torch.Tensor | None:
    """Returns the example value of a node if it is a tensor with strides."""
    value = node.meta.get("example_value")
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value if is_strided else None


def _owner(view: Node, memory: int) -> Node:
    """Returns the argument or the call that a view's memory came from, along its views.

    Another argument may overlap the same memory: it is no owner of this view.
    """
    while view.op != "placeholder":
        read = [(node, _strided(node)) for node in view.all_input_nodes]
        shared = [node for node, it in read if it is not None and memory_id(it) == memory]
        if not shared:
            return view
        view = shared[0]
    return view


def _read_whole(node: Node, written: set[int]) -> None:
    """Make `as_strided` of a view read the tensor that owns its memory."""
    view = node.args[0]
    if getattr(node.target, "__name__", node.target) != "as_strided" or not isinstance(view, Node):
        return
    value: Any = _strided(view)
    if value is None or memory_id(value) not in written:
        return
    root = _owner(view, memory_id(value))
    if root is view or root.meta["example_value"].dtype is not value.dtype:
        return
    names = ("size", "stride", "storage_offset")
    given = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    if given.get("storage_offset") is None:
        given["storage_offset"] = value.storage_offset()
    if root.meta["example_value"].requires_grad and not value.requires_grad:
        with node.graph.inserting_before(node):
            whole = node.graph.call_method("detach", (root,))
        whole.meta = dict(root.meta) | {"example_value": root.meta["example_value"].detach()}
        root = whole
    node.args, node.kwargs = (root, *(given[name] for name in names)), {}


def laid_out(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Copies to an order of axes in memory, from slowest to fastest."""
    if physical_order(x) == order:
        return x
    return x.permute(order).contiguous().permute(inverse(order))


def roll(x: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:
    """Torch's decomposition, but the result is channels last if the operand is, as in eager."""
    made = decompositions()[aten.roll.default](x, shifts, dims)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    is_last = last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous()
    return made.contiguous(memory_format=last) if is_last and dims else made


def constant_pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """Pads only with negative amounts: copies a part of the operand and keeps its layout.

    Symbolic amounts are guarded, so this choice is valid for all calls of a graph.
    """
    if any(amount > 0 for amount in pad):
        return NotImplemented
    for number in range(len(pad) // 2):
        low, high = pad[2 * number : 2 * number + 2]
        axis = x.dim() - 1 - number
        x = x.narrow(axis, -low, x.shape[axis] + low + high)
    return x.clone()


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.constant_pad_nd.default: constant_pad,
    aten.roll.default: roll,
}
