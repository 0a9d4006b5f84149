"""Stores images that a training step saves for its backward pass channels last.

Convolutions on tensor cores read and write images channels last, in both passes. In the layout that
torch traced, each access to a saved image would be strided.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from stack.frameworks.torch_private import OpOverload
from stack.frontends.torch.tensors.precision import conv_precision

aten = torch.ops.aten
# ops from images to images, besides elementwise ops
MAPS = frozenset({
    aten.max_pool2d_with_indices, aten.max_pool3d_with_indices, aten.avg_pool2d, aten.avg_pool3d,
    aten.constant_pad_nd, aten.cat, aten.upsample_nearest2d, aten.upsample_bilinear2d,
})  # fmt: skip
VIEWS = frozenset({
    aten.view, aten._unsafe_view, aten.reshape, aten.expand, aten.squeeze, aten.unsqueeze,
    aten.detach, aten.alias, aten.clone, aten._to_copy,
})  # fmt: skip
Modules = tuple[GraphModule, GraphModule]


def with_images(passes: Modules, num_fwd_outputs: int) -> Modules:
    """Changes the layout of images that the forward pass saves for backward to channels last."""
    forward, backward = passes
    last = forward.graph.output_node()
    results: Any = list(last.args[0])  # pyright: ignore[reportArgumentType]
    outputs, kept = results[:num_fwd_outputs], results[num_fwd_outputs:]
    images = _images(forward)
    readers = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    changed = False
    for place, node in enumerate(kept, num_fwd_outputs):
        reader = readers.get(getattr(node, "name", ""))
        if node in images and node not in outputs and reader is not None:
            results[place] = _channels_last(forward, node)
            _channels_second(backward, reader)
            changed = True
    if changed:
        last.args = (tuple(results),)
        for module in passes:
            module.graph.lint()
            module.recompile()
    return passes


def _images(forward: GraphModule) -> set[Node]:
    """Returns the nodes whose results are images, to store them channels last.

    Those are operands and results of convolutions on tensor cores, and values that elementwise and
    similar ops compute such operands from, or compute from any of them.
    """
    found: set[Node] = set()
    for node in forward.graph.nodes:
        if node.target is aten.convolution.default and _on_tensor_cores(node):
            found.update((node, *_sources(node.args[0])))
        elif _is_map(node) and any(a in found and _alike(a, node) for a in node.all_input_nodes):
            found.add(node)
    return {n for n in found if n.op == "call_function" and example_of(n) is not None}


def _on_tensor_cores(node: Node) -> bool:
    value = example_of(node)
    if value is None or value.dim() < 4:
        return False
    return value.itemsize == 2 or conv_precision(value) is not None


def _sources(node: Any) -> set[Node]:
    """Returns an image and the images that it is computed from by image ops."""
    found: set[Node] = set()
    pending = [node]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if _is_map(node):
                pending.extend(a for a in node.all_input_nodes if _alike(a, node))
    return found


def _is_map(node: Node) -> bool:
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    tags = node.target.tags
    is_elementwise = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    return is_elementwise or node.target.overloadpacket in MAPS | VIEWS


def example_of(node: Node) -> torch.Tensor | None:
    """Returns the example value of a node if all its sizes are numbers."""
    found = node.meta.get("val")
    if isinstance(found, torch.Tensor) and all(isinstance(s, int) for s in found.shape):
        return found
    return None


def _alike(operand: Node, node: Node) -> bool:
    """True if both nodes' results are non-empty tensors of equal rank and batch size.

    An op with several results counts as its first.
    """
    first, second = _example(operand), _example(node)
    if first is None or second is None or first.dim() != second.dim():
        return False
    return first.shape[0] == second.shape[0] and min(first.numel(), second.numel()) > 0


def _example(node: Node) -> torch.Tensor | None:
    value = node.meta.get("val")
    if isinstance(value, tuple | list) and value and isinstance(value[0], torch.Tensor):
        return value[0]
    return example_of(node)


def _channels_last(forward: GraphModule, image: Node) -> Node:
    """Adds nodes that copy an image to channels-last layout."""
    value: Any = image.meta["val"]
    order = [0, *range(2, value.dim()), 1]
    with forward.graph.inserting_before(forward.graph.output_node()):
        view = forward.graph.call_function(aten.permute.default, (image, order))
        form: dict[str, Any] = {"memory_format": torch.contiguous_format}
        copy = forward.graph.call_function(aten.clone.default, (view,), form)
    view.meta["val"] = value.permute(order)
    copy.meta["val"] = view.meta["val"].clone(**form)
    return copy


def _channels_second(backward: GraphModule, given: Node) -> None:
    """Change an image that `backward` takes to a channels-last array, read through a `permute`."""
    value: Any = given.meta["val"]
    rank = value.dim()
    with backward.graph.inserting_after(given):
        order = [0, rank - 1, *range(1, rank - 1)]
        view = backward.graph.call_function(aten.permute.default, (given, order))
    given.replace_all_uses_with(view, delete_user_cb=lambda user: user is not view)
    given.meta["val"] = value.permute(0, *range(2, rank), 1).contiguous()
    view.meta["val"] = given.meta["val"].permute(order)
