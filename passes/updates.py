"""Steps that copy an operand and then change some of it, where the copy can be left out.

A scatter stores its operand whole, then the updates. Where nobody reads the operand any more, its
memory can become the result's: the step then says `updates`, the number of that operand.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import rebuild_block
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import (
    is_alias,
    is_group,
    is_input,
    is_kernel,
    is_load,
    is_loop,
    is_store,
    nest_of,
)
from stack.ir.types import TupleType


def copied(kernel: Node) -> tuple[Node, int] | None:
    """What copies an operand into the only result, before anything else is there, and which."""
    if not is_kernel(kernel) or isinstance(kernel.type, TupleType):
        return None
    block = kernel.blocks[0]
    _, program = nest_of(block, "parallel")
    memory = program.params[-1]
    for node in program.nodes:
        if node.args[:1] == (memory,) and (is_loop(node) or is_store(node)):
            source = _source(node, memory)
            if source not in block.params[:-1] or source.type != memory.type:
                continue
            if not _reads(block, source, node):
                return node, block.params.index(source)
    return None


def _reads(block: Block, source: Node, besides: Node) -> bool:
    """Whether what memory holds is used in a block by another node than one."""
    nodes = [n for n in block.nodes if n is not besides]
    used = (*block.results, *(a for n in nodes for a in n.args))
    inner = (_reads(b, source, besides) for n in nodes for b in n.blocks)
    return any(is_load(a) and a.args[0] is source for a in used) or any(inner)


def _source(made: Node, memory: Node) -> Node | None:
    """The memory that stores into another copy from, each at the place that it reads.

    In place they would change nothing, be it the whole of it or less.
    """
    found: set[Node | None] = set()
    while made is not memory:
        if is_loop(made) and not made.attrs.get("limited") and len(made.args) == 1:
            found.add(_source(made.blocks[0].results[0], made.blocks[0].params[1]))
        elif is_store(made) and is_load(made.args[1]):
            index, mask, _ = access_parts(made)
            is_same = access_parts(made.args[1]) == (index, None, None) and mask is None
            found.add(made.args[1].args[0] if is_same else None)
        else:
            return None
        made = made.args[0]
    return found.pop() if len(found) == 1 else None


def copied_operand(step: Node, libraries: Sequence[str]) -> int | None:
    """The operand that a step copies first: a kernel of ours, or the library of one of some ops."""
    if is_library_of(step, libraries):
        return 0
    found = copied(step)
    return None if found is None else found[1]


def is_library_of(node: Node, names: Sequence[str]) -> bool:
    """Whether it is a library step of one of these ops alone, on the operands in order."""
    if node.attrs.get("kind") != "library":
        return False
    body = node.blocks[0]
    inner = body.nodes
    return len(inner) == 1 and inner[0].op in names and inner[0].args[:1] == body.params[:1]


def in_place(step: Node, operand: int) -> Node:
    """The step without its copy: its result takes the memory of the operand."""
    attrs = {**step.attrs, "updates": operand}
    found = copied(step)
    if found is None:
        return step.rebuilt(attrs=attrs)
    copy = found[0]

    def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
        if node is copy:
            return args[0]
        return node.rebuilt(args, blocks=blocks)

    return step.rebuilt(attrs=attrs, blocks=(rebuild_block(step.blocks[0], visit),))


def owner(value: Node) -> Node:
    """The step or parameter whose memory a value is in."""
    while is_alias(value) or "updates" in value.attrs:
        value = value.args[int(value.attrs.get("updates", 0))]
    return value


def updatable(block: Block, carried: bool, libraries: Sequence[str] = ()) -> dict[Node, int]:
    """Steps of a block whose copied operand nobody needs after them, and which operand that is.

    It is the result of a step, or, with `carried`, what a loop carries in the same place.
    """
    found: dict[Node, int] = {}
    for place, node in enumerate(block.nodes):
        number = copied_operand(node, libraries)
        if number is None:
            continue
        operand = node.args[number]
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
            found[node] = number
    return found


def _views(block: Block, root: Node) -> set[Node]:
    views = {root}
    for node in block.nodes:
        if is_alias(node) and node.args[0] in views:
            views.add(node)
    return views
