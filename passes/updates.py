"""Kernels that copy an operand and then change some of it, where the copy can be left out.

A scatter stores its operand whole, then the updates. Where nobody reads the operand any more, its
memory can become the result's: the kernel then says `updates`, the number of that operand.
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.builder import rebuild_block
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_alias, is_group, is_input
from stack.ir.types import TupleType


def copied(kernel: Node) -> tuple[Node, int] | None:
    """The loop that copies an operand of its size into the only result, and which operand."""
    if kernel.op != "kernel" or isinstance(kernel.type, TupleType):
        return None
    block = kernel.blocks[0]
    for node in block.nodes:
        if node.op == "loop" and node.args == block.params[-1:]:
            source = _source(node, {})
            if source in block.params[:-1] and source.type == block.params[-1].type:
                return node, block.params.index(source)
    return None


def _source(loop: Node, outer: Mapping[Node, int]) -> Node | None:
    """The memory that a nest of loops copies, element by element at its loops' variables."""
    if loop.attrs.get("limited") or len(loop.args) != 1:
        return None
    (block,) = loop.blocks
    step, memory = block.params
    steps = {**outer, step: int(step.attrs["extent"])}
    (last,) = block.results
    if last.op == "loop" and last.args == (memory,):
        return _source(last, steps)
    if last.op != "store" or last.args[0] is not memory or last.args[1].op != "load":
        return None
    index, mask, _ = access_parts(last)
    load = last.args[1]
    whole = [steps.get(i) for i in index] == list(memory.shape) and len(set(index)) == len(index)
    same = access_parts(load) == (index, None, None) and not load.tensor.rank
    return load.args[0] if whole and mask is None and same else None


def in_place(kernel: Node) -> Node:
    """The kernel without its copy: its result takes the memory of the operand."""
    found = copied(kernel)
    assert found is not None
    copy, operand = found

    def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
        if node is copy:
            return args[0]
        same = args == node.args and blocks == node.blocks
        return node if same else Node(node.op, args, node.attrs, node.type, blocks)

    block = rebuild_block(kernel.blocks[0], visit)
    return Node(kernel.op, kernel.args, {**kernel.attrs, "updates": operand}, kernel.type, (block,))


def owner(value: Node) -> Node:
    """The step or parameter whose memory a value is in."""
    while is_alias(value) or "updates" in value.attrs:
        value = value.args[int(value.attrs.get("updates", 0))]
    return value


def updatable(block: Block, carried: bool) -> list[Node]:
    """Kernels of a block whose copied operand nobody needs after them.

    That is the result of a step, or, with `carried`, what a loop carries in the same place.
    """
    found: list[Node] = []
    for place, node in enumerate(block.nodes):
        copy = copied(node)
        if copy is None:
            continue
        operand = node.args[copy[1]]
        root = owner(operand)
        views = _views(block, root)
        late = (n for n in block.nodes[place:] if n is not node and not is_alias(n))
        if any(not views.isdisjoint(n.args) for n in late):
            continue
        if sum(a in views for a in node.args) > 1 or not views.isdisjoint(block.results):
            continue
        own = is_group(root) and not isinstance(root.type, TupleType)
        if is_input(root) and carried:
            slot = block.params.index(root)
            own = block.results[slot] is node and block.results.count(node) == 1
        if own:
            found.append(node)
    return found


def _views(block: Block, root: Node) -> set[Node]:
    views = {root}
    for node in block.nodes:
        if is_alias(node) and node.args[0] in views:
            views.add(node)
    return views
