"""Memory that several values share.

In a program, kernels, library steps and control flow write results over operands. In a kernel, each
store and each loop returns a later version of its memory:

%a = store(%o0, ...)
%b = loop(%a) {(%i < 8, %held) ... store(%held, ...) }      all are versions of %o0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir.equivalence import once_in
from stack.ir.kernel_ops import loop_parts
from stack.ir.node import Block, Node
from stack.ir.traits import (
    behind,
    is_alias,
    is_control,
    is_item,
    is_loop,
    is_store,
    is_while,
    maker,
    place_of,
)

# ---- in a program


def reused(node: Node) -> dict[int, int]:
    """Maps numbers of results to the numbers of the operands whose memory they have.

    A kernel or library step has attribute `updates`, the number of one operand. Control flow has
    `reuses`, a number for each result, which is -1 for a result with memory of its own.
    """
    if "updates" in node.attrs:
        return {0: int(node.attrs["updates"])}
    return {i: number for i, number in enumerate(node.attrs.get("reuses", ())) if number >= 0}


def owner(value: Node) -> Node:
    """Returns the value or parameter whose memory a value uses."""
    while (source := one_before(value)) is not None:
        value = source
    return value


def one_before(value: Node) -> Node | None:
    """Returns the value that a value is a view or an update of; None if it has its own memory."""
    if is_alias(value):
        return value.args[0]
    number = reused(maker(value)).get(place_of(value))
    return None if number is None else maker(value).args[number]


def overwritten(block: Block) -> set[Node]:
    """Returns the parameters whose memory steps of a block overwrite."""
    return {owner(n.args[i]) for n in block.nodes for i in reused(n).values()} & {*block.params}


def reads_in_order(block: Block) -> bool:
    """True if no node reads a value after control flow that has overwritten its memory."""
    for place, node in enumerate(block.nodes):
        if not is_control(node):
            continue
        old = {node.args[i] for i in reused(node).values()}
        for value in [*old]:
            while (source := one_before(value)) is not None:
                old.add(value := source)
        old |= {n for n in block.nodes[:place] if is_alias(n) and behind(n) in old}
        if any(not old.isdisjoint(n.args) for n in block.nodes[place + 1 :] if not is_item(n)):
            return False
    return True


def reusable(node: Node) -> dict[int, int]:
    """Maps results of control flow to operands in whose memory it can compute them.

    A loop finds a carried value where it left it. Branches return the operand, updated or not.
    """
    first = 0 if is_while(node) else 1  # the operand of the first parameter
    bodies = node.blocks[-1:] if is_while(node) else node.blocks
    changed = {body.params.index(p) for body in bodies for p in overwritten(body)}
    found: dict[int, int] = {}
    for number in range(len(node.types)):
        owners = [owner(body.results[number]) for body in bodies]
        places = {b.params.index(o) if o in b.params else -1 for b, o in zip(bodies, owners)}
        if len(places) == 1 and places <= changed and places.isdisjoint(found.values()):
            found[number] = places.pop()
    return {number: place + first for number, place in found.items()}


# ---- in a kernel


def starts_of(loop: Node) -> Sequence[Node]:
    """Returns the initial values of all variables that a loop carries."""
    return loop_parts(loop.args, loop.attrs)[1]


@once_in
def memory_of(block: Block) -> Callable[[Node], Node]:
    """Returns a function that maps a memory value, such as the result of a store or loop in the
    block, to the parameter or allocation that it is a version of.
    """
    before: dict[Node, Node] = {}
    for loop in filter(is_loop, block.all_nodes):
        before.update(zip(loop.blocks[0].params[1:], starts_of(loop), strict=True))

    def found(memory: Node) -> Node:
        while True:
            if is_store(memory):
                memory = memory.args[0]
            elif is_loop(memory):
                memory = starts_of(memory)[0]
            elif is_item(memory) and is_loop(memory.args[0]):
                memory = starts_of(memory.args[0])[int(memory.attrs["index"])]
            elif memory in before:
                memory = before[memory]
            else:
                return memory

    return found
