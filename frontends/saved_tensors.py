"""Tensors that a training step saves for its backward pass, where its inputs are overwritten.

AOTAutograd's forward graph returns the new value of an input that the program writes to, and copies
it into that input after the graph has run. A backward pass that needs the old value must not be
given the input: it gets a copy, made before the write.

Somebody else may write to an input before the backward pass runs. Then autograd refuses to go on,
unless the program has cloned the input: the clone is saved, though its elements are the input's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import (
    DifferentiableAOTOutput,
    InputMutationAOTOutput,
    SubclassGetAttrAOTInput,
    SubclassGetAttrAOTOutput,
)
from torch.fx import GraphModule, Node

from stack.frontends.fx_border import physical_order, storage_root, viewed_by


def clones_input(node: Node) -> bool:
    """True if a node is a copy that the program makes of an input, or of a view of one."""
    if node.target is not torch.ops.aten.clone.default or "memory_format" in node.kwargs:
        return False  # with a format it is an operand for another op, as of `contiguous`
    return storage_root(node.all_input_nodes[0]).op == "placeholder"


def save_old_values(forward: GraphModule) -> None:
    """Have a forward graph of AOTAutograd's save copies of the inputs that it overwrites."""
    last = forward.graph.output_node()
    results: list[Any] = list(last.args[0])  # pyright: ignore[reportArgumentType]
    kinds = [_whole(kind) for kind in last.meta["desc"]]
    inputs = {k.mutated_input for k in kinds if isinstance(k, InputMutationAOTOutput)}
    holders = forward.graph.find_nodes(op="placeholder")
    written = {n for n in holders if _whole(n.meta.get("desc")) in inputs}
    copies: dict[Node, Node] = {}
    with forward.graph.inserting_before(last):
        for place, (node, kind) in enumerate(zip(results, kinds, strict=True)):
            is_saved = isinstance(node, Node) and not isinstance(kind, DifferentiableAOTOutput)
            if is_saved and storage_root(node) in written:
                results[place] = _copied(node, copies)
    if copies:
        last.args = (tuple(results),)
        forward.graph.lint()
        forward.recompile()


def _whole(kind: Any) -> Any:
    """The input or output of the program that an array is, or is a part of."""
    while isinstance(kind, SubclassGetAttrAOTInput | SubclassGetAttrAOTOutput):
        kind = kind.base
    return kind


def _copied(node: Node, copies: dict[Node, Node]) -> Node:
    """The same value in memory of its own; a view that is not dense, of a copy of what it views."""
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
