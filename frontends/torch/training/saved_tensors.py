"""Saved tensors of a training step whose inputs are overwritten.

AOTAutograd's forward graph returns the new value of an input that the program writes to, and copies
it into that input after the graph has run. If the backward pass needs the old value, it must not
get the input itself, but a copy made before the write.

Other code may write to an input before the backward pass runs. Autograd then raises, unless the
program has cloned the input: then the clone is saved, although its elements equal the input's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from stack.frameworks.torch_private import is_users_result, overwritten_input, whole_value
from stack.frontends.torch.importer.border import physical_order, storage_root, viewed_by


def clones_input(node: Node) -> bool:
    """True if a node is the program's clone of an input or of a view of one."""
    if node.target is not torch.ops.aten.clone.default or "memory_format" in node.kwargs:
        return False  # with a format the copy serves another op, such as `contiguous`
    return storage_root(node.all_input_nodes[0]).op == "placeholder"


def save_old_values(forward: GraphModule) -> None:
    """Make a forward graph of AOTAutograd save copies of the inputs that it overwrites."""
    last = forward.graph.output_node()
    results: list[Any] = list(last.args[0])  # pyright: ignore[reportArgumentType]
    kinds = [whole_value(kind) for kind in last.meta["desc"]]
    inputs = {overwritten_input(kind) for kind in kinds} - {None}
    holders = forward.graph.find_nodes(op="placeholder")
    written = {n for n in holders if whole_value(n.meta.get("desc")) in inputs}
    copies: dict[Node, Node] = {}
    with forward.graph.inserting_before(last):
        for place, (node, kind) in enumerate(zip(results, kinds, strict=True)):
            is_saved = isinstance(node, Node) and not is_users_result(kind)
            if is_saved and storage_root(node) in written:
                results[place] = _copied(node, copies)
    if copies:
        last.args = (tuple(results),)
        forward.graph.lint()
        forward.recompile()


def _copied(node: Node, copies: dict[Node, Node]) -> Node:
    """Copies a value to memory of its own; a view that is not dense becomes one of a copy."""
    if node not in copies:
        value = node.meta["val"]
        _, *viewed = viewed_by(node)
        if viewed and physical_order(value) is None:
            base = _copied(viewed[0], copies)
            copy = node.graph.node_copy(node, lambda n: base if n is viewed[0] else n)
        else:
            copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
            made = value.new_empty_strided(value.shape, value.stride())
            copy.meta = {**node.meta, "val": made}
        copies[node] = copy
    return copies[node]
