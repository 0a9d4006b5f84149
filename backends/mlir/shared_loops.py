"""The parallel loops at the top of a kernel, whose iterations threads share as one range.

loop {kind="parallel"} (%i < 8)  ...       iterations 0 to 7
loop {kind="parallel"} (%i < 4)  ...       iterations 8 to 11: the parts of a concatenation
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.memory import memory_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_load, is_loop, is_memory, is_store, maker, nest_of


@dataclass(frozen=True)
class SharedLoop:
    """Perfectly nested parallel loops.

    Attributes:
        nest: the loops, outermost first.
        program: the body of the innermost one.
    """

    nest: Sequence[Node]
    program: Block

    @property
    def extents(self) -> list[int]:
        """The number of iterations of each loop."""
        return [int(loop.blocks[0].params[0].attrs["extent"]) for loop in self.nest]

    @property
    def total(self) -> int:
        """The number of iterations of all loops together."""
        return math.prod(self.extents)


def shared_loops(block: Block) -> list[SharedLoop]:
    """Returns the loops of a kernel whose iterations threads share, in order.

    If the kernel stores elsewhere too, or reads what it stores, these are the last loop alone, or
    none if it does not make all results. Each thread then runs the rest of the kernel for itself.
    """
    found: dict[Node, SharedLoop] = {}
    for node in block.nodes:
        if is_loop(node, "parallel"):
            inner, program = nest_of(node.blocks[0], "parallel")
            found[node] = SharedLoop((node, *inner), program)
    arrays, memory = set(block.params), memory_of(block)
    stores = {n for n in block.nodes if is_store(n) or is_loop(n)}
    stored = {n: arrays.intersection(map(memory, filter(is_memory, n.args))) for n in stores}
    written = set().union(*stored.values())
    is_apart = not any(memory(n.args[0]) in written for n in block.all_nodes if is_load(n))
    if is_apart and all(node in found for node in stores if stored[node]):
        return [*found.values()]
    makers = {maker(result) for result in block.results}
    return [shared for loop, shared in found.items() if makers == {loop}]
