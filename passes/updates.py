"""In-place updates: avoid the copy in steps that copy an operand and then change some of it.

A scatter stores its operand whole, then the updates. If the operand is dead after the step, its
memory can become the result's. The step then has the attribute `updates`, the number of that
operand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from stack.ir.builder import make, param, rebuild_block
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import owner
from stack.ir.node import Block, Node
from stack.ir.traits import (
    is_alias,
    is_control,
    is_group,
    is_input,
    is_kernel,
    is_load,
    is_loop,
    is_store,
    maker,
    nest_of,
    place_of,
)
from stack.ir.types import TensorType, TupleType
from stack.passes.tiling.frame import names_of


@dataclass(frozen=True)
class Copy:
    """The stores of a kernel that copy an operand into the only result, before any other store.

    Attributes:
        operand: number of the operand.
        stores: loops and stores; each copies part of the operand.
    """

    operand: int
    stores: tuple[Node, ...]


def copied(kernel: Node, same: Collection[int] = ()) -> Copy | None:
    """Returns the copy that a kernel begins with, if no later store could change what it reads.

    Args:
        kernel: a node.
        same: numbers of other operands that share memory with the copied one.
    """
    if not is_kernel(kernel) or isinstance(kernel.type, TupleType):
        return None
    block = kernel.blocks[0]
    _, program = nest_of(block, "parallel")
    memory = state = program.params[-1]
    source: Node | None = None
    stores: list[Node] = []
    while (after := _next_state(program, state)) is not None:
        read = _source(after, state)
        if read not in block.params[:-1] or read.type != memory.type or source not in (None, read):
            break
        source, state = read, after
        stores.append(after)
    if source is None:
        return None
    operand = block.params.index(source)
    others = {source, *(block.params[i] for i in same)}
    if _reads(block, others, stores) and not _reads_first(block, program, state, stores):
        return None
    return Copy(operand, tuple(stores))


def _next_state(program: Block, memory: Node) -> Node | None:
    """Returns the first loop or store of a block that takes a memory and so makes its next version;
    None if there is none."""
    users = (n for n in program.nodes if memory in n.args and (is_loop(n) or is_store(n)))
    return next(users, None)


def _reads(block: Block, sources: Collection[Node], besides: Sequence[Node]) -> bool:
    """True if a block loads from any of `sources`, except in the nodes `besides`."""
    nodes = [n for n in block.nodes if n not in besides]
    used = (*block.results, *(a for n in nodes for a in n.args))
    inner = (_reads(b, sources, besides) for n in nodes for b in n.blocks)
    return any(is_load(a) and a.args[0] in sources for a in used) or any(inner)


def _reads_first(block: Block, program: Block, state: Node, copy: Sequence[Node]) -> bool:
    """True if every load precedes every store: there is one store, no loop, and one iteration.

    The store then depends on all loads, since the kernel has no other result.
    """
    (result,) = program.results
    is_last = is_store(result) and result.args[0] is state
    return program is block and is_last and not any(n.blocks for n in block.nodes if n not in copy)


def _source(made: Node, memory: Node) -> Node | None:
    """Returns the memory that the stores into `memory` copy from, each element to its own index.

    Done in place, such stores change nothing, whether they cover the whole array or a part.
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
    """Returns the operand that a step copies first: in our kernels, or in one of some libraries."""
    if is_library_of(step, libraries):
        return 0
    found = copied(step)
    return None if found is None else found.operand


def is_library_of(node: Node, names: Sequence[str]) -> bool:
    """True for a library step of a single op of `names`, on the operands in order."""
    if node.attrs.get("kind") != "library":
        return False
    body = node.blocks[0]
    inner = body.nodes
    return len(inner) == 1 and inner[0].op in names and inner[0].args[:1] == body.params[:1]


@dataclass(frozen=True)
class Update:
    """An update that a step can do in place.

    Attributes:
        operand: number of the operand whose memory the result takes.
        after: other readers of that memory, which have to run first.
    """

    operand: int
    after: tuple[Node, ...] = ()


def in_place(step: Node, update: Update) -> Node:
    """Returns the step without its copy. Extra operands make it wait for other readers."""
    attrs = {**step.attrs, "updates": update.operand}
    found = copied(step)
    if found is None:
        return step.rebuilt(attrs=attrs)

    def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
        if node in found.stores:
            return args[0]
        return node.rebuilt(args, blocks=blocks)

    body = rebuild_block(step.blocks[0], visit)
    count = len(step.args)
    waits = [_tensor_of(n) for n in update.after]
    types = [TensorType(n.dtype, n.shape, "global") for n in waits]
    names = names_of(body)
    unread = [param(names.own("after"), t) for t in types]
    params = (*body.params[:count], *unread, *body.params[count:])
    block = Block(params, body.results, body.names, body.locs)
    return step.rebuilt((*step.args, *waits), attrs=attrs, blocks=(block,))


def _tensor_of(step: Node) -> Node:
    """Returns a tensor that depends on a step: the step itself, or the first of several results.

    A step with this operand runs after it.
    """
    if not isinstance(step.type, TupleType):
        return step
    return make("item", (step,), {"index": 0}, hint=step.type.items[0])


# for control flow: the operands in whose memory results are computed, by number of the result
Reuses = Mapping[Node, Mapping[int, int]]


class Role(Enum):
    """The role of a block. A loop's body and a branch may overwrite their parameters."""

    PROGRAM = 0
    BODY = 1
    BRANCH = 2


@dataclass(frozen=True)
class Updates:
    """Steps of a block that can run in place, by node.

    Attributes:
        steps: kernels and library steps.
        control: as `Reuses`.
    """

    steps: dict[Node, Update] = field(default_factory=dict[Node, Update])
    control: dict[Node, Mapping[int, int]] = field(default_factory=dict[Node, Mapping[int, int]])

    def owner(self, value: Node) -> Node:
        """Returns the value or parameter whose memory a value uses after these updates."""
        while True:
            value, step = owner(value), maker(owner(value))
            number = self.control.get(step, {}).get(place_of(value))
            if value in self.steps:
                number = self.steps[value].operand
            if number is None:
                return value
            value = step.args[number]

    def of(self, node: Node) -> list[Node]:
        """Returns the operands whose memory a node overwrites."""
        numbers = [self.steps[node].operand] if node in self.steps else []
        return [node.args[i] for i in (*numbers, *self.control.get(node, {}).values())]


def updatable(
    block: Block,
    role: Role,
    libraries: Sequence[str] = (),
    control: Reuses = MappingProxyType({}),
) -> Updates:
    """Finds steps of a block that can run in place: an operand is dead afterwards.

    The operand is the result of a step or, in a loop's body or a branch, a parameter. The block
    then has to return the result in the same memory, after this and perhaps more updates. Other
    readers of the operand run first, if none of them needs the result.

    Args:
        control: see `stack.ir.memory.reusable`, for control flow in the block.
    """
    updates = Updates()
    found = updates.steps
    for place, node in enumerate(block.nodes):
        for result, operand in control.get(node, {}).items():
            root = owner(node.args[operand])
            views = _views(block, root)
            is_own = _is_own(root, role) and views.isdisjoint(block.results)
            is_read = any(not views.isdisjoint(n.args) for n in block.nodes[place + 1 :])
            is_taken = any(not views.isdisjoint(updates.of(n)) for n in found)
            if is_own and not is_read and not is_taken and sum(a in views for a in node.args) == 1:
                updates.control[node] = {**updates.control.get(node, {}), result: operand}
        may_update = is_group(node) and any(_is_own(owner(a), role) for a in node.args)
        number = copied_operand(node, libraries) if may_update else None
        if number is None:
            continue
        root = owner(node.args[number])
        views = _views(block, root)
        if not views.isdisjoint(block.results) or not _is_own(root, role):
            continue
        same = [i for i, a in enumerate(node.args) if a in views]
        if len(same) > 1 and copied(node, same) is None:
            continue
        readers = [n for n in block.nodes if not views.isdisjoint(n.args) and not is_alias(n)]
        needed = _needed(node, found)
        after = tuple(n for n in readers if n is not node and n not in needed)
        if any(node in _needed(n, found) for n in after):
            continue
        if is_kernel(node):
            found[node] = Update(number, after)
        elif not any(n in block.nodes[place:] for n in after):
            found[node] = Update(number)
    while lost := [n for n in (*found, *updates.control) if not _stays(block, n, updates, role)]:
        for node in lost:
            found.pop(node, None)
            updates.control.pop(node, None)
    return updates


def _is_own(root: Node, role: Role) -> bool:
    """True if a block may overwrite the memory of a value."""
    made = is_group(maker(root)) or is_control(maker(root))
    return made or (role is not Role.PROGRAM and is_input(root))


def _needed(node: Node, found: Mapping[Node, Update]) -> set[Node]:
    """Returns all nodes that have to run before `node`: those that it is computed from, and the
    other readers that in-place updates in `found` wait for."""
    seen: set[Node] = set()
    pending = [node]
    while pending:
        one = pending.pop()
        first = (*one.args, *(found[one].after if one in found else ()))
        fresh = [n for n in first if n not in seen]
        seen.update(fresh)
        pending += fresh
    return seen


def _stays(block: Block, node: Node, updates: Updates, role: Role) -> bool:
    """True if a block returns each parameter that `node` updates in its memory: a branch as any
    result, a loop's body as the same carried value. Otherwise the next iteration would find another
    value's memory, perhaps an argument's."""
    owners = [updates.owner(r) for r in block.results]
    roots = [root for value in updates.of(node) if is_input(root := updates.owner(value))]
    if role is Role.BRANCH:
        return all(root in owners for root in roots)
    return all(owners[block.params.index(root)] is root for root in roots)


def _views(block: Block, root: Node) -> set[Node]:
    views = {root}
    for node in block.nodes:
        if is_alias(node) and node.args[0] in views:
            views.add(node)
    return views
