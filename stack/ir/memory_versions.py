"""Versions of memory in a kernel: each store and each loop returns a later one.

%a = store(%o0, ...)
%b = loop(%a) {(%i < 8, %held) ... store(%held, ...) }      all are versions of %o0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir.equivalence import once_in
from stack.ir.kernel_ops import loop_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, is_loop, is_store


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
